//! Values that the suite plants and that must not be found anywhere it wrote, in any form that a log could give them.

/// The beginning of every API key and idempotency key that the tests use, accounts, names and amounts of their own.
pub(crate) const PLANTED: [&str; 13] = [
    "planted-key-",
    "planted-idempotency-key",
    "planted-unknown-key",
    "planted-store-secret",
    "12345678901234",
    "20000000000002",
    "48151623421084",
    "31415926535897",
    "271828183",
    "홍길동",
    "전우치",
    "남몰래",
    "둔갑",
];

/// The forms: UTF-8 and EUC-KR, each as it is, in hex, escaped, and as a list of decimal numbers.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    let mut euc_kr = vec![0; 2 * secret.len()];
    let length = codec::Charset::EucKr.encode_to(secret, &mut euc_kr).expect("a secret in the charset");
    euc_kr.truncate(length);
    let mut forms = Vec::new();
    for bytes in [secret.as_bytes(), &euc_kr] {
        forms.push(bytes.to_vec());
        forms.push(hex::encode(bytes).into_bytes());
        forms.push(hex::encode_upper(bytes).into_bytes());
        forms.push(bytes.escape_ascii().to_string().into_bytes());
        let decimal: Vec<String> = bytes.iter().map(u8::to_string).collect();
        forms.push(decimal.join(", ").into_bytes());
    }
    forms
}

/// The first secret that the bytes hold, if they hold one, and the line that it stands in.
pub(crate) fn found(bytes: &[u8]) -> Option<(&'static str, String)> {
    PLANTED.into_iter().find_map(|secret| {
        let at = forms(secret).iter().find_map(|form| memchr::memmem::find(bytes, form))?;
        let (before, behind) = bytes.split_at(at);
        let newline = |byte: &u8| *byte == b'\n';
        let line =
            [before.rsplit(newline).next(), behind.split(newline).next()].map(Option::unwrap_or_default).concat();
        Some((secret, line.escape_ascii().to_string()))
    })
}

#[test]
fn the_scan_finds_a_secret_in_every_form() {
    for secret in PLANTED {
        for form in forms(secret) {
            let text = [b"a log line with ", &form[..], b" in it"].concat();
            assert!(found(&text).is_some(), "{secret} as {}", form.escape_ascii());
        }
    }
    assert_eq!(found("a log line with 481516****1084 in it".as_bytes()), None);
}
