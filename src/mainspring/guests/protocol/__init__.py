"""ZCL1 and the operations of `sys/loop@v1` as bytes."""
