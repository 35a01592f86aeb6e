//! Bodies that are JSON, and bodies that are not.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::Value;

use super::super::error::ApiError;
use super::super::json::*;

fn refusal(body: impl AsRef<[u8]>) -> ApiError {
    let error = parse(body.as_ref()).unwrap_err();
    assert_eq!(error.status(), 400);
    error
}

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

#[test]
fn refuses_what_is_not_strict_json() {
    let bodies: [&[u8]; 21] = [
        b"",
        b" ",
        b"{",
        b"{\"a\":}",
        b"{a:1}",
        b"{'a':1}",
        b"[1,]",
        b"{\"a\":1,}",
        b"nul",
        b"NaN",
        b"{\"a\":NaN}",
        b"{\"a\":Infinity}",
        b"{\"a\":-Infinity}",
        b"1e400",
        b"01",
        b"{} {}",
        b"{}x",
        b"\"\\ud800\"",
        b"\"\\udc00\"",
        b"\"\xff\"",
        b"\xef\xbb\xbf{}",
    ];
    for body in bodies {
        refusal(body);
    }
    refusal("\"a\nb\"");
    refusal("// comment\n{}");
}

#[test]
fn says_where() {
    let error = refusal("{\"messages\": [{},{},\n {\"content\": \"\\ud800\"}]}");
    assert!(error.message().contains("line 2, column"), "{error}");
    assert!(error.message().contains("`messages[2].content`"), "{error}");
    assert!(refusal("{\"stop\": NaN}").message().contains("`stop`"));
    assert!(
        refusal(b"{\"stop\": \"\xff\"}")
            .message()
            .contains("byte 10")
    );
}

#[test]
fn refuses_repeated_keys_everywhere() {
    assert!(refusal(r#"{"a":1,"a":1}"#).message().contains("`a`"));
    assert!(
        refusal(r#"{"x":[{"b":1,"c":2,"\u0062":3}]}"#)
            .message()
            .contains("`x[0].b`")
    );
    let many: String = (0..1000).map(|n| format!("\"k{n}\":0,")).collect();
    assert!(
        refusal(format!("{{{many}\"k500\":1}}"))
            .message()
            .contains("`k500`")
    );
    assert!(parse(format!("{{{many}\"other\":1}}").as_bytes()).is_ok());
}

#[test]
fn depth_and_count_are_bounded() {
    assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(refusal(nested(MAX_DEPTH + 1)).message().contains("nested"));
    refusal(nested(100));
    refusal("[".repeat(1_000_000));
    refusal("{\"a\":".repeat(100_000));
    assert!(
        refusal(format!("[{}0]", "0,".repeat(MAX_VALUES)))
            .message()
            .contains("values")
    );
    assert!(size_of::<Json>() <= 32);
}

#[test]
fn strings_borrow_where_they_can() {
    let body = br#"{"a":"plain","b":"\u00e9"}"#;
    let object = parse_object(body).unwrap();
    assert!(matches!(object[0].1, Json::String(Cow::Borrowed("plain"))));
    assert!(matches!(&object[1].1, Json::String(Cow::Owned(text)) if text == "\u{e9}"));
}

#[test]
fn only_objects_are_bodies() {
    for body in ["[]", "null", "1", "\"x\""] {
        assert_eq!(parse_object(body.as_bytes()).unwrap_err().status(), 400);
    }
}

#[test]
fn content_types() {
    for good in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/ld+json",
    ] {
        assert!(check_content_type(Some(good.as_bytes())).is_ok(), "{good}");
    }
    for bad in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "json",
        "application/jsonp",
    ] {
        assert_eq!(
            check_content_type(Some(bad.as_bytes()))
                .unwrap_err()
                .status(),
            400,
            "{bad}"
        );
    }
    assert!(check_content_type(None).is_err() && check_content_type(Some(b"\xff")).is_err());
}

proptest! {
    #[test]
    fn never_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&body);
    }

    #[test]
    fn reads_what_serde_json_writes(value in value()) {
        let body = serde_json::to_vec_pretty(&value).unwrap();
        prop_assert_eq!(parse(&body).map(Json::into_value), Ok(value));
    }

    #[test]
    fn accepts_nothing_that_serde_json_refuses(value in value(), at in any::<usize>(), byte in any::<u8>()) {
        let mut body = serde_json::to_vec(&value).unwrap();
        let at = at % body.len();
        body[at] = byte;
        if let Ok(strict) = parse(&body) {
            prop_assert_eq!(strict.into_value(), serde_json::from_slice::<Value>(&body).unwrap());
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            proptest::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
