//! What must hold for any value and any bytes.

use codec::{
    Accepts, Catalog, Field, FieldType, FrameCodec, Framing, Layout, LengthForm, LengthPrefix, Origin, Record, Side,
    Value, View, decode, encode,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio_util::codec::Decoder;

use crate::layout;

/// Values that mostly fit, so that the walk gets to the end, and now and then don't.
#[derive(Debug, Clone)]
struct Transfer {
    charset: &'static str,
    accounts: (String, String),
    amount: i64,
    texts: (String, String),
}

fn transfers() -> impl Strategy<Value = Transfer> {
    let account = prop_oneof![9 => "[0-9]{1,14}", 1 => "[0-9]{15}"];
    let amount = prop_oneof![9 => 1..=999_999_999_999_i64, 1 => any::<i64>()];
    let text = prop_oneof![
        4 => "[ -~가-힣]{0,10}", 4 => "[ -~ㄱ-ㅎ가각간갇갈감갑값한글은행]{0,10}", 1 => "[가-힣一-龥😀é]{0,14}", 1 => "\\PC{0,22}",
    ];
    (prop::sample::select(vec!["euc-kr", "cp949"]), (account.clone(), account), amount, (text.clone(), text))
        .prop_map(|(charset, accounts, amount, texts)| Transfer { charset, accounts, amount, texts })
}

#[test]
fn decoding_what_was_encoded_gives_the_same_record_or_encoding_refuses() {
    let encoded = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&transfers(), |Transfer { charset, accounts, amount, texts }| {
        let layout = layout("transfer-request", charset);
        let pad = |digits: &str| format!("{digits:0>14}");
        let set = |record: Record, name: &str, value: Value<'_>| record.with(name, value).unwrap();
        let record = set(Record::new(&layout), "tranId", Value::Text("GWMNU202611290000001A3"));
        let record = set(record, "fromAccount", Value::Text(&pad(&accounts.0)));
        let record = set(record, "toAccount", Value::Text(&pad(&accounts.1)));
        let record = set(record, "amount", Value::Amount(amount));
        let record = set(record, "payeeName", Value::Text(&texts.0));
        let record = set(record, "memo", Value::Text(&texts.1));
        let mut bytes = Vec::new();
        match encode(&record, &mut bytes) {
            Ok(()) => {
                encoded.set(encoded.get() + 1);
                prop_assert_eq!(bytes.len(), 120);
                prop_assert_eq!(decode(&layout, &bytes), Ok(record));
            }
            Err(_) => prop_assert!(bytes.is_empty()),
        }
        Ok(())
    });
    result.unwrap();
    assert!((200..1_900).contains(&encoded.get()), "{} of 2,000 encoded: the generator is lopsided", encoded.get());
}

proptest! {
    #[test]
    fn groups_of_any_size_come_back_as_they_were(
        records in prop::collection::vec((0_u64..1000, 0_i64..1_000_000_000_000, "[가-각]{0,8}"), 0..40),
    ) {
        let layout = layout("history-reply", "cp949");
        let rows = records.iter().map(|(seq, amount, summary)| vec![
            Value::Number(*seq), Value::Text("20260601"), Value::Text("입금"),
            Value::Amount(*amount), Value::Amount(*amount), Value::Text(summary),
        ]).collect::<Vec<_>>();
        let record = Record::new(&layout)
            .with("accountNo", Value::Text("00000000000007")).unwrap()
            .with("responseCode", Value::Text("0000")).unwrap()
            .with("records", Value::Records(rows.clone())).unwrap();
        let mut bytes = Vec::new();
        encode(&record, &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), 30 + 55 * records.len());
        let decoded = decode(&layout, &bytes).unwrap();
        prop_assert_eq!(decoded.get("records"), Value::Records(rows));
        prop_assert_eq!(decoded.get("recordCount"), Value::Number(records.len() as u64));
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

/// Mostly plausible bytes, so that the walk gets far: constants in place, digits, spaces, now and then anything.
fn push_field(field: &Field, random: &mut Bytes, bytes: &mut Vec<u8>) {
    if let Origin::Constant(constant) = field.origin() {
        bytes.extend_from_slice(constant);
        return;
    }
    let date = field.kind() == FieldType::Date;
    for at in 0..field.length() {
        let [kind, any, ..] = random.next().to_le_bytes();
        bytes.push(match kind {
            0..=3 => any,
            4..=7 => b' ',
            _ if date => b"20260615"[at],
            _ => b'0' + any % 10,
        });
    }
}

/// A message of this layout; one with a group gets a count, a total and records that agree.
fn message(layout: &Layout, random: &mut Bytes) -> Vec<u8> {
    let mut bytes = Vec::new();
    let records = usize::from(random.next().to_le_bytes()[0] % 4);
    for field in layout.fields() {
        match field.origin() {
            _ if field.kind() == FieldType::Group => {
                for _ in 0..records {
                    field.fields().iter().for_each(|inner| push_field(inner, random, &mut bytes));
                }
            }
            Origin::Count => bytes.extend_from_slice(format!("{records:0>width$}", width = field.length()).as_bytes()),
            Origin::TotalLength => {
                let total = layout.length_with(records);
                bytes.extend_from_slice(format!("{total:0>width$}", width = field.length()).as_bytes());
            }
            _ => push_field(field, random, &mut bytes),
        }
    }
    bytes
}

#[test]
fn a_million_generated_byte_strings_are_decoded_or_refused_without_a_panic() {
    let catalog = Catalog::builtin().unwrap();
    let names = catalog.names();
    let mut random = Bytes(0x9E37_79B9_7F4A_7C15);
    let (mut accepted, mut refused, mut with_records) = (0, 0, 0);
    for round in 0..1_000_000_usize {
        let layout = catalog.get(names[round % names.len()]).unwrap();
        let mut bytes = message(layout, &mut random);
        let [dice, at, byte, ..] = random.next().to_le_bytes();
        let place = usize::from(at) % bytes.len();
        match dice % 16 {
            0 => bytes.truncate(place),
            1 => bytes.push(byte),
            2 => bytes[place] = byte,
            _ => {}
        }
        match decode(layout, &bytes) {
            Ok(record) => {
                accepted += 1;
                with_records += usize::from(bytes.len() > layout.header_length());
                let json = serde_json::to_vec(&record.view(View::All)).unwrap();
                assert_eq!(Record::from_json(layout, &json, Accepts::All), Ok(record));
            }
            Err(_) => refused += 1,
        }
    }
    let told = format!("{accepted} accepted, {with_records} of them with records, {refused} refused");
    assert!(accepted > 50_000 && refused > 50_000 && with_records > 5_000, "{told}: the generator is lopsided");
}

#[test]
fn a_million_generated_streams_are_framed_or_refused_without_a_panic() {
    let mut random = Bytes(0x1234_5678_9ABC_DEF1);
    let forms =
        [LengthForm::AsciiDigits(2), LengthForm::AsciiDigits(4), LengthForm::BigEndian16, LengthForm::BigEndian32];
    let (mut framed, mut partial, mut refused) = (0, 0, 0);
    for round in 0..1_000_000_usize {
        let form = forms[round % forms.len()];
        let counts_itself = round % 8 < 4;
        let prefix = LengthPrefix { form, counts_itself, body_max: 40 };
        let mut codec = FrameCodec::new(Framing::LengthPrefixed(prefix), Side::Gateway);
        let [length, rest, dice, byte, ..] = random.next().to_le_bytes();
        let mut stream = match form {
            LengthForm::AsciiDigits(digits) => format!("{:0>digits$}", length % 50).into_bytes(),
            LengthForm::BigEndian16 => vec![0, length % 50],
            LengthForm::BigEndian32 => vec![0, 0, 0, length % 50],
        };
        stream.resize(stream.len() + usize::from(rest % 50), b'x');
        if dice < 20 {
            let place = usize::from(dice) % stream.len();
            stream[place] = byte;
        }
        let mut stream = bytes::BytesMut::from(&stream[..]);
        match codec.decode(&mut stream) {
            Ok(Some(frame)) => {
                framed += 1;
                assert!(frame.len() <= 40);
            }
            Ok(None) => partial += 1,
            Err(_) => refused += 1,
        }
    }
    let told = format!("{framed} framed, {partial} partial, {refused} refused");
    assert!(framed > 100_000 && partial > 100_000 && refused > 50_000, "{told}: the generator is lopsided");
}
