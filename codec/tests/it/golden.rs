//! Golden bytes from another encoder: the gateway and the simulator share this codec, so a fault that both make alike
//! would cancel out between them. Here it does not.

use codec::{Accepts, Charset, Record, Rule, View, decode, encode};
use serde_json::Value as Json;

use crate::layout;

fn lines(name: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_golden_message_encodes_to_its_bytes_and_decodes_to_its_json() {
    let messages = lines("messages.jsonl");
    assert_eq!(messages.len(), 19);
    for message in messages {
        let name = message["layout"].as_str().unwrap();
        let layout = layout(name, message["charset"].as_str().unwrap());
        let bytes = hex::decode(message["hex"].as_str().unwrap()).unwrap();
        let json = serde_json::to_vec(&message["json"]).unwrap();

        let record = Record::from_json(&layout, &json, Accepts::All).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let mut encoded = Vec::new();
        encode(&record, &mut encoded).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(hex::encode(&encoded), hex::encode(&bytes), "{name}");

        let decoded = decode(&layout, &bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(serde_json::to_value(decoded.view(View::All)).unwrap(), message["json"], "{name}");
        assert_eq!(decoded, record, "{name}");
    }
}

#[test]
fn every_refused_message_is_refused() {
    let messages = lines("refused.jsonl");
    assert_eq!(messages.len(), 16);
    for message in messages {
        let layout = layout(message["layout"].as_str().unwrap(), message["charset"].as_str().unwrap());
        let bytes = hex::decode(message["hex"].as_str().unwrap()).unwrap();
        assert!(decode(&layout, &bytes).is_err(), "accepted: {}", message["why"]);
    }
}

#[test]
fn all_syllables_are_as_the_table_says() {
    let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/hangul.tsv")).unwrap();
    let (mut all, mut strict) = (0, 0);
    for line in table.lines() {
        let [code, syllable, bytes, set] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(syllable.chars().map(u32::from).collect::<Vec<_>>(), [u32::from_str_radix(code, 16).unwrap()]);
        let bytes = hex::decode(bytes).unwrap();
        let mut out = [0; 2];
        assert_eq!(Charset::Cp949.encode_to(syllable, &mut out), Ok(2), "{syllable}");
        assert_eq!(out[..], bytes, "{syllable}");
        let mut text = String::new();
        assert_eq!(Charset::Cp949.decode_to(&bytes, &mut text), Ok(()), "{syllable}");
        assert_eq!(text, syllable);
        let in_ks = Charset::EucKr.encode_to(syllable, &mut out).is_ok();
        assert_eq!(in_ks, set == "ks", "{syllable}");
        assert_eq!(Charset::EucKr.decode_to(&bytes, &mut text).is_ok(), in_ks, "{syllable}");
        all += 1;
        strict += usize::from(in_ks);
    }
    assert_eq!((all, strict), (11_172, 2_350));
}

#[test]
fn a_message_that_does_not_carry_its_layouts_constant_is_another_message() {
    let layout = layout("balance-reply", "euc-kr");
    let mut bytes = b"021011012345678901IN010000000058532770000".to_vec();
    bytes.resize(61, b' ');
    assert!(decode(&layout, &bytes).is_ok());
    for at in 0..4 {
        let mut other = bytes.clone();
        other[at] ^= 1;
        let error = decode(&layout, &other).unwrap_err();
        assert_eq!((&*error.field, error.rule), ("messageType", Rule::NotTheConstant));
    }
}

#[test]
fn a_half_letter_at_a_fields_end_is_an_error_and_its_neighbour_is_intact() {
    let layout = layout("transfer-request", "cp949");
    let json = br#"{"tranId":"GWMNU202611290000001A3","fromAccount":"1","toAccount":"2","amount":1,"payeeName":"A","memo":"A"}"#;
    let mut bytes = Vec::new();
    encode(&Record::from_json(&layout, json, Accepts::All).unwrap(), &mut bytes).unwrap();
    let payee = layout.field("payeeName").unwrap();
    let last = payee.offset() + payee.length() - 1;
    // B0 41 is a letter of windows-949; here B0 ends one field and 41 begins the next.
    bytes[last - 1] = b'B';
    bytes[last] = 0xB0;
    let error = decode(&layout, &bytes).unwrap_err();
    assert_eq!(&*error.field, "payeeName");
    bytes[last] = b'C';
    let record = decode(&layout, &bytes).unwrap();
    assert_eq!(record.text("memo"), "A");
}
