//! Layout files that must be refused, with the line; and JSON that must be refused, with the field.

use codec::{Accepts, Catalog, Layout, Record, Rule, encode};

use crate::layout;

const GOOD: &str = r#"name = "probe"
charset = "euc-kr"
length = 8
[[field]]
name = "kind"
type = "text"
length = 4
constant = "0900"
[[field]]
name = "count"
type = "number"
length = 4
[[field]]
name = "rows"
type = "group"
length = 3
count = "count"
[[field.field]]
name = "word"
type = "text"
length = 3
"#;

fn faults(from: &str, to: &str) -> Vec<(usize, String)> {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "the change `{from}` does not touch the file");
    let errors = Layout::from_toml("probe.toml", &text).unwrap_err();
    errors.into_iter().map(|error| (error.line, error.message)).collect()
}

#[test]
fn each_kind_of_broken_layout_is_refused_with_its_line() {
    Layout::from_toml("probe.toml", GOOD).unwrap();
    for (from, to, line, says) in [
        ("\"count\"\ntype", "\"kind\"\ntype", 9, "stands twice"),
        ("length = 8", "length = 9", 3, "add up to 8 bytes"),
        ("count = \"count\"", "count = \"missing\"", 13, "not an earlier number field"),
        ("count = \"count\"", "count = \"word\"", 13, "not an earlier number field"),
        ("type = \"number\"", "type = \"packed\"", 11, "unknown field type"),
        ("euc-kr", "latin-1", 2, "unknown charset"),
        ("\"0900\"", "\"09000\"", 4, "constant that does not fit"),
        ("\"0900\"", "\"뷁\"", 4, "constant that does not fit"),
        ("length = 3\ncount", "length = 4\ncount", 13, "adds up to 3 bytes"),
        ("constant = \"0900\"", "colour = \"red\"", 8, "unknown field"),
        ("name = \"probe\"", "name = ", 1, "string values must be quoted"),
        ("constant = \"0900\"", "differs_from = \"kind\"", 4, "no earlier body field"),
        ("type = \"number\"", "type = \"number\"\nmin = 9\nmax = 3", 9, "contradict each other"),
        ("type = \"number\"", "type = \"number\"\nmax = 10000", 9, "contradict each other"),
        ("name = \"word\"\ntype = \"text\"", "name = \"word\"\ntype = \"text\"\necho = true", 18, "mean nothing"),
        (
            "name = \"word\"\ntype = \"text\"",
            "name = \"word\"\ntype = \"text\"\ndiffers_from = \"word\"",
            18,
            "mean nothing",
        ),
        ("length = 4\nconstant", "length = 9223372036854775807\nconstant", 4, "length that its type cannot have"),
        (
            "constant = \"0900\"",
            "constant = \"0900\"\n[[field]]\nname = \"kind\"\ntype = \"filler\"\nlength = 1",
            9,
            "stands twice",
        ),
        ("constant = \"0900\"", "max = 5", 4, "is no number"),
        ("type = \"number\"\nlength = 4", "type = \"date\"\nlength = 4", 9, "length that its type cannot have"),
        ("constant = \"0900\"", "fill = \"transaction-id\"", 4, "type or length that its fill"),
        ("constant = \"0900\"", "fill = \"moon\"", 4, "unknown fill"),
        ("constant = \"0900\"", "constant = \"0900\"\necho = true", 4, "only be one of"),
    ] {
        let found = faults(from, to);
        assert!(found.iter().any(|(at, text)| *at == line && text.contains(says)), "{to}: {found:?}");
    }
}

#[test]
fn a_group_whose_count_comes_later_is_refused() {
    let text = GOOD.replace("[[field]]\nname = \"count\"\ntype = \"number\"\nlength = 4\n", "")
        + "[[field]]\nname = \"count\"\ntype = \"number\"\nlength = 4\n";
    let errors = Layout::from_toml("probe.toml", &text).unwrap_err();
    assert!(errors.iter().any(|error| error.message.contains("not an earlier number field")), "{errors:?}");
}

#[test]
fn a_catalog_fails_as_a_whole_and_reports_every_file() {
    let (bad, worse) = (GOOD.replace("length = 8", "length = 7"), GOOD.replace("euc-kr", "utf-8"));
    let sources = [("a.toml", GOOD), ("b.toml", &bad), ("c.toml", &worse), ("d.toml", GOOD)];
    let errors = Catalog::from_sources(sources.into_iter()).unwrap_err();
    let files: Vec<_> = errors.iter().map(|error| error.file.as_str()).collect();
    assert_eq!(files, ["b.toml", "c.toml", "d.toml"], "{errors:?}");
}

#[test]
fn json_that_breaks_a_rule_is_refused_with_field_and_rule_and_never_the_value() {
    let layout = layout("transfer-request", "euc-kr");
    let good = r#"{"fromAccount":"10000000000001","toAccount":"2","amount":10000,"payeeName":"홍길동"}"#;
    assert!(Record::from_json(&layout, good.as_bytes(), Accepts::Body).is_ok());
    for (from, to, field, rule) in [
        ("10000,", "10000,\"amount\":1,", "amount", Rule::Duplicate),
        ("10000,", "1e3,", "amount", Rule::NotAPlainInteger),
        ("10000,", "1.0,", "amount", Rule::NotAPlainInteger),
        ("10000,", "99999999999999999999,", "amount", Rule::NotAPlainInteger),
        ("10000,", "-1,", "amount", Rule::OutOfRange),
        ("10000,", "0,", "amount", Rule::OutOfRange),
        ("10000,", "1000000000000,", "amount", Rule::OutOfRange),
        ("10000,", "\"1\",", "amount", Rule::WrongType),
        ("10000,", "null,", "amount", Rule::WrongType),
        ("10000,", "[1],", "amount", Rule::WrongType),
        ("10000,", "{},", "amount", Rule::WrongType),
        ("10000,", "1,\"secret-colour\":1,", "(message)", Rule::UnknownField),
        ("10000,", "1,\"tranId\":\"GWMNU202611290000001A3\",", "(message)", Rule::UnknownField),
        ("\"amount\":10000,", "", "amount", Rule::Missing),
        ("\"10000000000001\"", "\"100000000000011\"", "fromAccount", Rule::TooLong),
        ("\"10000000000001\"", "\"\"", "fromAccount", Rule::Empty),
        ("\"10000000000001\"", "\"1234-5678\"", "fromAccount", Rule::NotDigits),
        ("\"10000000000001\"", "\"１２\"", "fromAccount", Rule::NotDigits),
        ("\"10000000000001\"", "12", "fromAccount", Rule::WrongType),
        ("\"10000000000001\"", "\"00000000000002\"", "toAccount", Rule::MustDiffer),
        ("홍길동", "홍길동홍길동홍길동홍길", "payeeName", Rule::TooLong),
        ("홍길동", "똠방", "payeeName", Rule::Unmappable),
        ("홍길동", "홍 ", "payeeName", Rule::TrailingSpace),
        ("홍길동", "홍\\u0000", "payeeName", Rule::ControlCharacter),
    ] {
        let json = good.replacen(from, to, 1);
        assert_ne!(json, good);
        let error = match Record::from_json(&layout, json.as_bytes(), Accepts::Body) {
            Ok(record) => {
                let record = record.with("tranId", codec::Value::Text("GWMNU202611290000001A3")).unwrap();
                encode(&record, &mut Vec::new()).unwrap_err()
            }
            Err(error) => error.unwrap_or_else(|| panic!("{json}: no field named")),
        };
        assert_eq!((&*error.field, error.rule), (field, rule), "{json}");
        let text = error.to_string();
        assert!(!text.contains("secret-colour") && !text.contains("100000") && !text.contains('홍'), "{text}");
    }
    for broken in ["", "[]", "7", "{", "{\"a\"", "{} {}"] {
        assert!(Record::from_json(&layout, broken.as_bytes(), Accepts::Body).is_err(), "{broken}");
    }
}

#[test]
fn two_layouts_of_one_name_are_refused_with_file_and_line() {
    let twin = format!("# a comment\n{GOOD}");
    let mut catalog = Catalog::from_sources([("a.toml", GOOD)].into_iter()).unwrap();
    let other = Catalog::from_sources([("b.toml", &*twin)].into_iter()).unwrap();
    let errors = catalog.merge(other).unwrap_err();
    assert_eq!(errors[0].to_string(), "b.toml:2: a layout named `probe` is already there, from a.toml");
}

#[test]
fn a_count_beyond_all_bounds_is_an_error() {
    let text = GOOD
        .replace("length = 8", "length = 24")
        .replace("type = \"number\"\nlength = 4", "type = \"number\"\nlength = 20");
    let wide = std::sync::Arc::new(Layout::from_toml("probe.toml", &text).unwrap());
    assert!(codec::decode(&wide, b"090018446744073709551615").is_err());
    assert_eq!(wide.length_with(usize::MAX), usize::MAX);
}

#[test]
fn accounts_that_are_one_on_the_wire_do_not_differ() {
    let layout = layout("transfer-request", "euc-kr");
    let text = codec::Value::Text;
    let record = Record::new(&layout)
        .with("tranId", text("GWMNU202611290000001A3"))
        .unwrap()
        .with("fromAccount", text("2"))
        .unwrap()
        .with("toAccount", text("00000000000002"))
        .unwrap()
        .with("amount", codec::Value::Amount(1))
        .unwrap()
        .with("payeeName", text("A"))
        .unwrap();
    let mut bytes = Vec::new();
    let error = encode(&record, &mut bytes).unwrap_err();
    assert_eq!((&*error.field, error.rule, bytes.len()), ("toAccount", Rule::MustDiffer, 0));
}

#[test]
fn a_value_that_breaks_its_fields_rule_is_refused_by_name() {
    let layout = layout("balance-request", "euc-kr");
    let id = "GWMNU202611290000001A3";
    for (name, text, rule) in [
        ("accountNo", "", Rule::Empty),
        ("accountNo", "123456789012345", Rule::TooLong),
        ("accountNo", "1234567890123x", Rule::NotDigits),
        ("accountNo", "123456789012345x", Rule::NotDigits),
        ("tranId", "GWMNU202611290000001A ", Rule::TrailingSpace),
        ("tranId", "GWMNU202611290000001A34", Rule::TooLong),
        ("tranId", "GWMNU20261129000000\u{1}1A3", Rule::ControlCharacter),
        ("tranId", "é", Rule::Unmappable),
    ] {
        let value = codec::Value::Text;
        let record = Record::new(&layout).with("tranId", value(id)).unwrap().with("accountNo", value("7")).unwrap();
        let mut bytes = b"before".to_vec();
        let error = encode(&record.with(name, value(text)).unwrap(), &mut bytes).unwrap_err();
        assert_eq!((&*error.field, error.rule), (name, rule), "{text:?}");
        assert_eq!(bytes, b"before", "{text:?}");
    }
}
