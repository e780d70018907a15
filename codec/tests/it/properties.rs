//! What must hold for any value and any bytes.

use codec::{
    Accepts, Catalog, FrameCodec, Framing, LengthForm, LengthPrefix, Record, Side, Value, View, decode, encode,
};
use proptest::prelude::*;
use tokio_util::codec::Decoder;

use crate::layout;

proptest! {
    #[test]
    fn decoding_what_was_encoded_gives_the_same_record_or_encoding_refuses(
        charset in prop::sample::select(vec!["euc-kr", "cp949"]),
        from in "[0-9]{1,15}", to in "[0-9]{1,14}", amount in any::<i64>(),
        payee in "[ -~가-힣ㄱ-ㅎ一-龥😀é ]{0,14}", memo in "\\PC{0,22}",
    ) {
        let layout = layout("transfer-request", charset);
        let pad = |digits: &str| Value::Text(format!("{digits:0>14}"));
        let record = Record::new(&layout)
            .with("tranId", Value::Text("GWMNU202611290000001A3".into())).unwrap()
            .with("fromAccount", pad(&from)).unwrap()
            .with("toAccount", pad(&to)).unwrap()
            .with("amount", Value::Amount(amount)).unwrap()
            .with("payeeName", Value::Text(payee)).unwrap()
            .with("memo", Value::Text(memo)).unwrap();
        let mut bytes = Vec::new();
        match encode(&record, &mut bytes) {
            Ok(()) => {
                prop_assert_eq!(bytes.len(), 120);
                prop_assert_eq!(decode(&layout, &bytes), Ok(record));
            }
            Err(_) => prop_assert!(bytes.is_empty()),
        }
    }

    #[test]
    fn groups_of_any_size_come_back_as_they_were(
        records in prop::collection::vec((0_u64..1000, 0_i64..1_000_000_000_000, "[가-각]{0,8}"), 0..40),
    ) {
        let layout = layout("history-reply", "cp949");
        let rows = records.iter().map(|(seq, amount, summary)| vec![
            Value::Number(*seq), Value::Text("20260601".into()), Value::Text("입금".into()),
            Value::Amount(*amount), Value::Amount(*amount), Value::Text(summary.clone()),
        ]).collect::<Vec<_>>();
        let record = Record::new(&layout)
            .with("accountNo", Value::Text("00000000000007".into())).unwrap()
            .with("responseCode", Value::Text("0000".into())).unwrap()
            .with("records", Value::Records(rows.clone())).unwrap();
        let mut bytes = Vec::new();
        encode(&record, &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), 30 + 55 * records.len());
        let decoded = decode(&layout, &bytes).unwrap();
        prop_assert_eq!(decoded.get("records"), &Value::Records(rows));
        prop_assert_eq!(decoded.get("recordCount"), &Value::Number(records.len() as u64));
    }
}

/// xorshift64*, so that the million strings are the same on every machine.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

#[test]
fn a_million_generated_byte_strings_are_decoded_or_refused_without_a_panic() {
    let catalog = Catalog::builtin().unwrap();
    let names = catalog.names();
    let prefix = LengthPrefix { form: LengthForm::AsciiDigits(4), counts_itself: false, body_max: 9_999 };
    let framing = Framing::LengthPrefixed(prefix);
    let mut random = Bytes(0x9E37_79B9_7F4A_7C15);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..1_000_000_usize {
        let layout = catalog.get(names[round % names.len()]).unwrap();
        let header = layout.header_length();
        let mut bytes = Vec::with_capacity(header + 2);
        // Mostly plausible bytes, so that the walk gets far: constants in place, digits, spaces, now and then anything.
        for field in layout.fields() {
            if let codec::Origin::Constant(constant) = field.origin() {
                bytes.extend_from_slice(constant);
            } else if field.kind() != codec::FieldType::Group {
                for _ in 0..field.length() {
                    let dice = random.next();
                    bytes.push(match dice % 64 {
                        0 => dice.to_le_bytes()[1],
                        1 => b' ',
                        _ => b'0' + dice.to_le_bytes()[1] % 10,
                    });
                }
            }
        }
        match random.next() % 16 {
            0 => bytes.truncate(header.saturating_sub(1)),
            1 => bytes.push(b'0'),
            _ => {}
        }
        match decode(layout, &bytes) {
            Ok(record) => {
                accepted += 1;
                let json = serde_json::to_vec(&record.view(View::All)).unwrap();
                assert_eq!(Record::from_json(layout, &json, Accepts::All), Ok(record));
            }
            Err(_) => refused += 1,
        }
        let mut stream = bytes::BytesMut::from(&bytes[..]);
        if let Ok(Some(frame)) = FrameCodec::new(framing, Side::Gateway).decode(&mut stream) {
            assert!(frame.len() <= 9_999);
        }
    }
    assert!(accepted > 10_000 && refused > 10_000, "{accepted} accepted, {refused} refused: the generator is lopsided");
}
