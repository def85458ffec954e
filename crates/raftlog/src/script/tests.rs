use super::*;
use crate::raw::Queue;

fn incoming(change: Change) -> Incoming {
    Incoming {
        group: 7,
        first: 10,
        count: 5,
        rewrite_count: 2,
        queue: Queue::Rewrite,
        change,
    }
}

fn appended(body: &str) -> Result<Verdict> {
    let text = format!(
        "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) {{ {body} }}"
    );
    RepairScript::compile(&text)?.decide(&incoming(Change::Entries {
        first: 12,
        last: 20,
    }))
}

#[test]
fn a_script_says_what_becomes_of_something() {
    let script = RepairScript::compile(
        "// what is below the first entry
         fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) {
           if ifirst < first { return 1; /* it /* was */ compacted */ }
           0 // as it is
         }
         fn filter_compact(id, first, count, rewrite_count, queue, compact_to) {
           if compact_to > first + count { 2 } else { is_odd(compact_to) }
         }
         fn is_odd(n) { n % 2 }",
    )
    .unwrap();
    let entries = |first| incoming(Change::Entries { first, last: 99 });
    let compact = |index| incoming(Change::Compact { index });
    assert_eq!(script.decide(&entries(9)).unwrap(), Verdict::DropIncoming);
    assert_eq!(script.decide(&entries(10)).unwrap(), Verdict::Apply);
    assert_eq!(script.decide(&compact(16)).unwrap(), Verdict::DropExisting);
    assert_eq!(script.decide(&compact(13)).unwrap(), Verdict::DropIncoming);
    assert_eq!(script.decide(&compact(12)).unwrap(), Verdict::Apply);
    let clean = incoming(Change::Clean);
    assert_eq!(
        script.decide(&clean).unwrap(),
        Verdict::Apply,
        "it is left out"
    );
    assert_eq!(
        RepairScript::compile("").unwrap().decide(&clean).unwrap(),
        Verdict::Apply
    );
    // Numbers beyond 63 bits are negative, as Rhai has them.
    let script =
        "fn filter_compact(a, b, c, d, e, compact_to) { if compact_to == -1 { 2 } else { 0 } }";
    let script = RepairScript::compile(script).unwrap();
    assert_eq!(
        script.decide(&compact(u64::MAX)).unwrap(),
        Verdict::DropExisting
    );
}

#[test]
fn expressions_have_the_values_that_rhai_gives_them() {
    for (condition, truth) in [
        ("1 + 2 * 3 == 7", true),
        ("(1 + 2) * 3 == 9", true),
        ("10 - 3 - 2 == 5", true),
        ("100 / 7 % 4 == 2", true),
        ("-7 / 2 == -3 && -7 % 2 == -1", true),
        ("1 + 1 == 2 || 1 / 0 == 1", true),
        ("false && 1 / 0 == 1", false),
        ("true || false && false", true),
        ("!(id == 7) || queue != 1", false),
        ("id & 1 == 0", false),
        (
            "0xff == 255 && 0b101 == 5 && 0o17 == 15 && 1_000 == 1000",
            true,
        ),
        ("true ^ true | true & false", false),
        (
            "ilast - ifirst >= 8 && ilast - ifirst <= 8 && !(1 > 1)",
            true,
        ),
        (
            "{ let a = 1; a += 2; a *= 5; a -= 3; a /= 4; a %= 2; a == 1 }",
            true,
        ),
        (
            "if id == 1 { false } else if id == 7 { true } else { false }",
            true,
        ),
    ] {
        let verdict = appended(&format!("if ({condition}) {{ 1 }} else {{ 0 }}"));
        if condition.starts_with("id &") {
            // The comparison binds tighter, and a number and a truth value do not go together.
            verdict.unwrap_err();
            continue;
        }
        let wanted = if truth {
            Verdict::DropIncoming
        } else {
            Verdict::Apply
        };
        assert_eq!(verdict.unwrap(), wanted, "{condition}");
    }
    for body in [
        "let n = 0; while n < 10 { n += 1; if n == 3 { continue; } if n == 5 { break; } } n - 4",
        "let n = 5; loop { n -= 1; if n == 1 { return n; } }",
        "let x = 1; { let x = 2; x + 0; } x",
        "let x = 5; if true { x = 1 } x",
        "let x = if id == 7 { 1 } else { 0 }; x",
        "; 1",
        "1;",
        "1;;",
        "if id == 7 { 1; } else { 0; };",
        "if id == 7 { 1 } else { 0 };",
        "let x = { 1; }; x",
    ] {
        assert_eq!(appended(body).unwrap(), Verdict::DropIncoming, "{body}");
    }
}

#[test]
fn what_is_no_such_script_is_an_error_and_nothing_else() {
    for body in [
        "3",
        "-1",
        "true",
        "",
        "x",
        "x = 1; 0",
        "1 + true",
        "if 1 { 0 } else { 1 }",
        "1 / 0",
        "9223372036854775807 + 1",
        "-(-9223372036854775807 - 1)",
        "f(1)",
        "break; 0",
        "let a = (return 1); 0",
        "loop { }",
        "filter_append(id, first, count, rewrite_count, queue, ifirst, ilast)",
    ] {
        let e = appended(body).expect_err(body);
        assert_eq!(
            e.kind(),
            orogen_base::ErrorKind::InvalidArgument,
            "{body}: {e}"
        );
    }
    let deep = |open: &str, close: &str| {
        format!(
            "fn f() {{ {}1{} }}",
            open.repeat(10_000),
            close.repeat(10_000)
        )
    };
    for text in [
        "fn",
        "fn f",
        "fn f(",
        "fn f() {",
        "fn f() { 1 2 }",
        "fn f() { \"text\" }",
        "fn f() { 1 ** 2 }",
        "fn f() { 1 << 2 }",
        "fn f() { 1.5 }",
        "fn f() { 99999999999999999999 }",
        "fn f() { 1x }",
        "fn f() { let fn = 1; }",
        "fn f() {} fn f() {}",
        "fn filter_clean(id) { 0 }",
        "let x = 1;",
        "/* no end",
        "fn f() { a.b }",
        "\u{e9}",
        &deep("(", ")"),
        &deep("{", "}"),
        &deep("!", ""),
        &deep("if true {", "}"),
        &deep("g(", ")"),
    ] {
        let e = RepairScript::compile(text).expect_err(text);
        assert_eq!(e.kind(), orogen_base::ErrorKind::InvalidArgument, "{e}");
    }
}

#[test]
fn long_is_not_deep() {
    let many: Vec<String> = (100..5000).map(|n| format!("id == {n}")).collect();
    let body = format!("if {} || id == 7 {{ 1 }} else {{ 0 }}", many.join(" || "));
    assert_eq!(appended(&body).unwrap(), Verdict::DropIncoming);
    let many: Vec<String> = (100..3000)
        .map(|n| format!("if id == {n} {{ 2 }} else "))
        .collect();
    let body = format!("{} {{ 1 }}", many.join(""));
    assert_eq!(appended(&body).unwrap(), Verdict::DropIncoming);
}

#[test]
fn calls_in_nested_loops_are_an_error_before_the_stack_is_full() {
    let body = format!(
        "{}return f(n + 1);{}",
        "while true { ".repeat(40),
        " }".repeat(40)
    );
    let text = format!("fn f(n) {{ {body} }} fn filter_clean(a, b, c, d, e) {{ f(0) }}");
    let script = RepairScript::compile(&text).unwrap();
    let e = script.decide(&incoming(Change::Clean)).unwrap_err();
    assert_eq!(e.kind(), orogen_base::ErrorKind::InvalidArgument);
}
