"""Commands that run or look after a node and its log."""
