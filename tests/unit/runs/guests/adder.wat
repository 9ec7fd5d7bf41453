;; A guest of the Voyd host protocol, written by hand.
;;
;; main(n): for i from n down to 1, adds what await(i) answers to a sum and tells log the sum; returns the sum.
;; Negative arguments make it misbehave, one way each:
;;   -1 panics           -2 loops for ever       -3 reports status 7      -4 reports length -1
;;   -5 reports a length beyond the buffer       -6 sends garbage         -7 asks for operation 99
;;   -8 completes with a failure                 -9 grows its memory until that is refused, then panics
;;   -10 asks for await with another op id       -11 completes for another export
;;
;; Its messages are templates in passive data: everything but the number is constant.
(module
  (type $cont (struct (field $used (mut i32)) (field $i i32) (field $sum i32) (field $logging i32)))
  (type $result (struct (field $status i32) (field $len i32) (field $cont (ref null $cont))))

  (memory (export "memory") 1)
  (global $panic_ptr (export "__voyd_panic_ptr") (mut i32) (i32.const -1))
  (global $panic_len (export "__voyd_panic_len") (mut i32) (i32.const 0))

  (data $await_head "\99\02\02\00\abtest::Async\00\d2\b1R\d8%\00\91\92\d9@36fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\d2")
  (data $await_tail "\d9@36fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670")
  (data $log_head "\99\02\02\01\a9test::Log\00\d2\cf9\83\a6\01\91\92\d9@36fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\d2")
  (data $log_tail "\d9@40955b5abc45821961bbf767b91bb936e7ab8af8f1cd4a7f680c21ed664943ed")
  (data $value_head "\94\02\01\ceuHq\04\92\00\92\d9@36fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\d2")
  (data $failure "\94\02\01\ceuHq\04\92\01\98\a2vm\aacompletion\a7execute\a7runtime\a4oops\c0\b1the guest gave up\c0")
  (data $panic "the guest panicked")

  ;; writes a number as four bytes, the highest first
  (func $put (param $at i32) (param $n i32)
    (i32.store8 (local.get $at) (i32.shr_u (local.get $n) (i32.const 24)))
    (i32.store8 (i32.add (local.get $at) (i32.const 1)) (i32.shr_u (local.get $n) (i32.const 16)))
    (i32.store8 (i32.add (local.get $at) (i32.const 2)) (i32.shr_u (local.get $n) (i32.const 8)))
    (i32.store8 (i32.add (local.get $at) (i32.const 3)) (local.get $n)))

  (func $byte (param $at i32) (result i32) (i32.load8_u (local.get $at)))

  (func $half (param $at i32) (result i32)
    (i32.or
      (i32.shl (call $byte (local.get $at)) (i32.const 8))
      (call $byte (i32.add (local.get $at) (i32.const 1)))))

  ;; reads a MessagePack integer of any width up to 32 bits; traps on anything else
  (func $get (param $at i32) (result i32)
    (local $tag i32) (local $next i32)
    (local.set $tag (call $byte (local.get $at)))
    (local.set $next (i32.add (local.get $at) (i32.const 1)))
    (if (i32.lt_u (local.get $tag) (i32.const 0x80)) (then (return (local.get $tag))))
    (if (i32.ge_u (local.get $tag) (i32.const 0xe0)) (then (return (i32.extend8_s (local.get $tag)))))
    (if (i32.eq (local.get $tag) (i32.const 0xcc)) (then (return (call $byte (local.get $next)))))
    (if (i32.eq (local.get $tag) (i32.const 0xcd)) (then (return (call $half (local.get $next)))))
    (if (i32.eq (local.get $tag) (i32.const 0xd0)) (then (return (i32.extend8_s (call $byte (local.get $next))))))
    (if (i32.eq (local.get $tag) (i32.const 0xd1)) (then (return (i32.extend16_s (call $half (local.get $next))))))
    (if (i32.or (i32.eq (local.get $tag) (i32.const 0xce)) (i32.eq (local.get $tag) (i32.const 0xd2)))
      (then (return (i32.or
        (i32.shl (call $half (local.get $next)) (i32.const 16))
        (call $half (i32.add (local.get $next) (i32.const 2)))))))
    (unreachable))

  (func $ask_await (param $out i32) (param $i i32) (param $sum i32) (result (ref $result))
    (memory.init $await_head (local.get $out) (i32.const 0) (i32.const 92))
    (call $put (i32.add (local.get $out) (i32.const 92)) (local.get $i))
    (memory.init $await_tail (i32.add (local.get $out) (i32.const 96)) (i32.const 0) (i32.const 66))
    (struct.new $result (i32.const 1) (i32.const 162)
      (struct.new $cont (i32.const 0) (local.get $i) (local.get $sum) (i32.const 0))))

  (func $ask_log (param $out i32) (param $i i32) (param $sum i32) (result (ref $result))
    (memory.init $log_head (local.get $out) (i32.const 0) (i32.const 90))
    (call $put (i32.add (local.get $out) (i32.const 90)) (local.get $sum))
    (memory.init $log_tail (i32.add (local.get $out) (i32.const 94)) (i32.const 0) (i32.const 66))
    (struct.new $result (i32.const 1) (i32.const 160)
      (struct.new $cont (i32.const 0) (local.get $i) (local.get $sum) (i32.const 1))))

  (func $complete (param $out i32) (param $sum i32) (result (ref $result))
    (memory.init $value_head (local.get $out) (i32.const 0) (i32.const 78))
    (call $put (i32.add (local.get $out) (i32.const 78)) (local.get $sum))
    (struct.new $result (i32.const 0) (i32.const 82) (ref.null $cont)))

  (func $go_on (param $out i32) (param $i i32) (param $sum i32) (result (ref $result))
    (if (result (ref $result)) (i32.eqz (local.get $i))
      (then (call $complete (local.get $out) (local.get $sum)))
      (else (call $ask_await (local.get $out) (local.get $i) (local.get $sum)))))

  (func $say_panic (param $out i32)
    (memory.init $panic (local.get $out) (i32.const 0) (i32.const 18))
    (global.set $panic_ptr (local.get $out))
    (global.set $panic_len (i32.const 18))
    (unreachable))

  (func $misbehave (param $way i32) (param $out i32) (param $cap i32) (result (ref $result))
    (local $asked (ref $result))
    (if (i32.eq (local.get $way) (i32.const -1)) (then (call $say_panic (local.get $out))))
    (if (i32.eq (local.get $way) (i32.const -2)) (then (loop $for_ever (br $for_ever))))
    (if (i32.eq (local.get $way) (i32.const -3))
      (then (return (struct.new $result (i32.const 7) (i32.const 4) (ref.null $cont)))))
    (if (i32.eq (local.get $way) (i32.const -4))
      (then (return (struct.new $result (i32.const 1) (i32.const -1) (ref.null $cont)))))
    (if (i32.eq (local.get $way) (i32.const -5))
      (then (return (struct.new $result (i32.const 1) (i32.add (local.get $cap) (i32.const 1)) (ref.null $cont)))))
    (if (i32.eq (local.get $way) (i32.const -6)) (then
      (memory.init $panic (local.get $out) (i32.const 0) (i32.const 18))
      (return (struct.new $result (i32.const 1) (i32.const 18) (ref.null $cont)))))
    (if (i32.eq (local.get $way) (i32.const -8)) (then
      (memory.init $failure (local.get $out) (i32.const 0) (i32.const 66))
      (return (struct.new $result (i32.const 0) (i32.const 66) (ref.null $cont)))))
    (if (i32.eq (local.get $way) (i32.const -9)) (then
      (loop $grow (br_if $grow (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
      (call $say_panic (local.get $out))))
    (if (i32.eq (local.get $way) (i32.const -11)) (then
      (drop (call $complete (local.get $out) (i32.const 1)))
      (i32.store8 (i32.add (local.get $out) (i32.const 7)) (i32.const 0))
      (return (struct.new $result (i32.const 0) (i32.const 82) (ref.null $cont)))))
    (local.set $asked (call $ask_await (local.get $out) (i32.const 1) (i32.const 0)))
    (if (i32.eq (local.get $way) (i32.const -7))
      (then (i32.store8 (i32.add (local.get $out) (i32.const 3)) (i32.const 99))))
    (if (i32.eq (local.get $way) (i32.const -10))
      (then (i32.store8 (i32.add (local.get $out) (i32.const 16)) (i32.const 5))))
    (local.get $asked))

  (func (export "init_effects") (param $handles i32))

  ;; the argument of an invocation of one i32 is at byte 76 of its message
  (func (export "main_effectful") (param $in i32) (param $len i32) (param $out i32) (param $cap i32) (result (ref $result))
    (local $n i32)
    (local.set $n (call $get (i32.add (local.get $in) (i32.const 76))))
    (if (result (ref $result)) (i32.lt_s (local.get $n) (i32.const 0))
      (then (call $misbehave (local.get $n) (local.get $out) (local.get $cap)))
      (else (call $go_on (local.get $out) (local.get $n) (i32.const 0)))))

  ;; a continuation is good for one resumption; the answer is at byte 73, and byte 5 says whether it is a value
  (func (export "resume_effectful")
    (param $cont (ref $cont)) (param $at i32) (param $len i32) (param $cap i32) (param $kind i32) (param $id i32)
    (result (ref $result))
    (local $i i32) (local $sum i32)
    (if (struct.get $cont $used (local.get $cont)) (then (unreachable)))
    (struct.set $cont $used (local.get $cont) (i32.const 1))
    (if (i32.load8_u (i32.add (local.get $at) (i32.const 5))) (then (unreachable)))
    (local.set $i (struct.get $cont $i (local.get $cont)))
    (local.set $sum (struct.get $cont $sum (local.get $cont)))
    (if (struct.get $cont $logging (local.get $cont))
      (then (return (call $go_on (local.get $at) (i32.sub (local.get $i) (i32.const 1)) (local.get $sum)))))
    (call $ask_log
      (local.get $at)
      (local.get $i)
      (i32.add (local.get $sum) (call $get (i32.add (local.get $at) (i32.const 73))))))

  (func (export "effect_status") (param (ref $result)) (result i32) (struct.get $result $status (local.get 0)))
  (func (export "effect_len") (param (ref $result)) (result i32) (struct.get $result $len (local.get 0)))
  (func (export "effect_cont") (param (ref $result)) (result anyref) (struct.get $result $cont (local.get 0)))

  (@custom "__voyd_effect_table" "\02\00\00\00\02\00\00\00\9f]7\ef\d7/.\88\00\00\00\00\00\00\00\00\00\00\00\00%\d8R\b1\0c\00\00\00\a1W\ba\9b\c3U\a1\dc\1e\00\00\00\00\00\00\00\01\00\00\00\a6\839\cf(\00\00\00test::Async\00test::Async.await\00test::Log\00test::Log.log\00")
  (@custom "voyd.export_abi" "{\22version\22:2,\22hostAbi\22:2,\22dtoSchemaAbi\22:1,\22transport\22:{\22id\22:\22voyd.std.msgpack\22,\22version\22:1},\22exports\22:[{\22id\22:1967681796,\22name\22:\22main\22,\22abi\22:\22serialized\22,\22params\22:[{\22schema\22:{\22kind\22:\22i32\22},\22fingerprint\22:\2236fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\22}],\22result\22:{\22schema\22:{\22kind\22:\22i32\22},\22fingerprint\22:\2236fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\22}}],\22taskCompletions\22:[],\22callbacks\22:[],\22payloadFingerprints\22:[]}")
  (@custom "voyd.effect_abi" "{\22version\22:1,\22ops\22:[{\22opIndex\22:0,\22params\22:[{\22schema\22:{\22kind\22:\22i32\22},\22fingerprint\22:\2236fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\22}],\22result\22:{\22schema\22:{\22kind\22:\22i32\22},\22fingerprint\22:\2236fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\22}},{\22opIndex\22:1,\22params\22:[{\22schema\22:{\22kind\22:\22i32\22},\22fingerprint\22:\2236fb38997998636b3157bf1ef24ccd5bbdd63802c4cd2d79b90b4ef113202670\22}],\22result\22:{\22schema\22:{\22kind\22:\22void\22},\22fingerprint\22:\2240955b5abc45821961bbf767b91bb936e7ab8af8f1cd4a7f680c21ed664943ed\22}}]}")
)
