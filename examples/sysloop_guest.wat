;; A guest in WebAssembly text: arms a repeating timer, watches handle 3, and waits for both in one place.
;;
;;     (sleep 1; echo hello; sleep 1) | mainspring guest examples/sysloop_guest.wat --attach 0
;;
;; What comes through the pipe is copied to standard output, every half second a line "tick" is written, and the guest
;; ends with the pipe. It never blocks anywhere but in POLL.
(module
  (import "env" "zi_cap_open" (func $open (param i64) (result i32)))
  (import "env" "zi_write" (func $write (param i32 i64 i32) (result i32)))
  (import "env" "zi_read" (func $read (param i32 i64 i32) (result i32)))
  (memory (export "memory") 2)

  ;; The request to open sys/loop: kind, name, mode 0, no parameters.
  (data (i32.const 0x100) "sysloop")
  (data (i32.const 0x110)
    "\00\01\00\00\00\00\00\00" "\03\00\00\00"    ;; kind: 3 bytes at 0x100
    "\03\01\00\00\00\00\00\00" "\04\00\00\00"    ;; name: 4 bytes at 0x103
    "\00\00\00\00" "\00\00\00\00\00\00\00\00" "\00\00\00\00")

  ;; WATCH handle 3 for readable and hup, as watch 7.
  (data (i32.const 0x200)
    "ZCL1" "\01\00" "\01\00" "\01\00\00\00" "\00\00\00\00" "\00\00\00\00" "\14\00\00\00"
    "\03\00\00\00" "\05\00\00\00" "\07\00\00\00\00\00\00\00" "\00\00\00\00")
  ;; TIMER_ARM 9: in 500 ms and every 500 ms (500000000 ns is 0x1DCD6500), relative.
  (data (i32.const 0x240)
    "ZCL1" "\01\00" "\03\00" "\02\00\00\00" "\00\00\00\00" "\00\00\00\00" "\1c\00\00\00"
    "\09\00\00\00\00\00\00\00" "\00\65\cd\1d\00\00\00\00" "\00\65\cd\1d\00\00\00\00" "\01\00\00\00")
  ;; POLL for up to 8 events, for ever.
  (data (i32.const 0x280)
    "ZCL1" "\01\00" "\05\00" "\03\00\00\00" "\00\00\00\00" "\00\00\00\00" "\08\00\00\00"
    "\08\00\00\00" "\ff\ff\ff\ff")
  (data (i32.const 0x2c0) "tick\n")

  ;; Sends a request and reads its answer to 0x1000. Gives the status of the answer: 1 is OK.
  (func $ask (param $loop i32) (param $request i64) (param $size i32) (result i32)
    (drop (call $write (local.get $loop) (local.get $request) (local.get $size)))
    (drop (call $read (local.get $loop) (i64.const 0x1000) (i32.const 4096)))
    (i32.load (i32.const 0x100c)))

  ;; Copies what is in the pipe to standard output. Gives 1 at its end.
  (func $copy (result i32) (local $count i32)
    (local.set $count (call $read (i32.const 3) (i64.const 0x2000) (i32.const 4096)))
    (if (i32.gt_s (local.get $count) (i32.const 0))
      (then (drop (call $write (i32.const 1) (i64.const 0x2000) (local.get $count)))))
    (i32.eqz (local.get $count)))

  (func (export "main") (param $in i32) (param $out i32) (result i32)
    (local $loop i32) (local $event i32) (local $end i32)
    (local.set $loop (call $open (i64.const 0x110)))
    (if (i32.lt_s (local.get $loop) (i32.const 3)) (then (return (i32.const 1))))
    (if (i32.ne (call $ask (local.get $loop) (i64.const 0x200) (i32.const 44)) (i32.const 1))
      (then (return (i32.const 2))))
    (if (i32.ne (call $ask (local.get $loop) (i64.const 0x240) (i32.const 52)) (i32.const 1))
      (then (return (i32.const 3))))
    (loop $polls
      (if (i32.ne (call $ask (local.get $loop) (i64.const 0x280) (i32.const 32)) (i32.const 1))
        (then (return (i32.const 4))))
      ;; Events of 32 bytes each follow the header (24) and the head of the answer (16); their count is at +32.
      (local.set $event (i32.const 0x1028))
      (local.set $end (i32.add (local.get $event) (i32.mul (i32.load (i32.const 0x1020)) (i32.const 32))))
      (block $done
        (loop $events
          (br_if $done (i32.ge_u (local.get $event) (local.get $end)))
          (if (i32.eq (i32.load (local.get $event)) (i32.const 2))
            (then (drop (call $write (i32.const 1) (i64.const 0x2c0) (i32.const 5))))
            (else (if (call $copy) (then (return (i32.const 0))))))
          (local.set $event (i32.add (local.get $event) (i32.const 32)))
          (br $events)))
      (br $polls))
    (unreachable)))
