//! What the codec is measured against: two messages written and read by hand, knowing their layouts, with `encoding_rs` alone for
//! their text. They check what must be checked to read at all, and nothing that a layout demands beyond it.

use encoding_rs::EUC_KR;

/// `balance-request`: 52 bytes, no text.
pub(crate) fn write_balance(tran_id: &str, account: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0200");
    out.extend_from_slice(tran_id.as_bytes());
    pad_left(account, 14, out);
    out.extend_from_slice(b"IN01        ");
}

/// `transfer-request`: 120 bytes, two of its fields text.
pub(crate) fn write_transfer(
    tran_id: &str,
    (from, to): (&str, &str),
    amount: u64,
    (payee, memo): (&str, &str),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"0600");
    out.extend_from_slice(tran_id.as_bytes());
    out.extend_from_slice(b"TR01");
    pad_left(from, 14, out);
    pad_left(to, 14, out);
    let mut digits = [b'0'; 15];
    let mut rest = amount;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
    out.extend_from_slice(&digits);
    write_text(payee, 20, out);
    write_text(memo, 20, out);
    out.extend_from_slice(b"       ");
}

fn pad_left(text: &str, length: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + length.saturating_sub(text.len()), b'0');
    out.extend_from_slice(text.as_bytes());
}

fn write_text(text: &str, length: usize, out: &mut Vec<u8>) {
    let end = out.len() + length;
    let mut encoder = EUC_KR.new_encoder();
    out.reserve(encoder.max_buffer_length_from_utf8_without_replacement(text.len()).unwrap_or_default());
    let _result = encoder.encode_from_utf8_to_vec_without_replacement(text, out, true);
    out.resize(end, b' ');
}

/// What stands in a `balance-reply`.
#[derive(Debug)]
pub(crate) struct Balance {
    _account: String,
    _tx_code: String,
    _balance: u64,
    _response_code: String,
    _response_message: String,
}

/// `balance-reply`: 61 bytes, one of its fields text.
pub(crate) fn read_balance(bytes: &[u8]) -> Option<Balance> {
    Some(Balance {
        _account: String::from_utf8(bytes.get(4..18)?.to_vec()).ok()?,
        _tx_code: String::from_utf8(bytes.get(18..22)?.to_vec()).ok()?,
        _balance: read_number(bytes.get(22..37)?)?,
        _response_code: String::from_utf8(bytes.get(37..41)?.to_vec()).ok()?,
        _response_message: read_text(bytes.get(41..61)?)?,
    })
}

/// What stands in a `transfer-reply`.
#[derive(Debug)]
pub(crate) struct Transfer {
    _tran_id: String,
    _tx_code: String,
    _accounts: [String; 2],
    _amounts: [u64; 2],
    _response_code: String,
    _response_message: String,
}

/// `transfer-reply`: 120 bytes, one of its fields text.
pub(crate) fn read_transfer(bytes: &[u8]) -> Option<Transfer> {
    let text = |from: usize, to: usize| String::from_utf8(bytes.get(from..to)?.to_vec()).ok();
    Some(Transfer {
        _tran_id: text(4, 26)?,
        _tx_code: text(26, 30)?,
        _accounts: [text(30, 44)?, text(44, 58)?],
        _amounts: [read_number(bytes.get(58..73)?)?, read_number(bytes.get(73..88)?)?],
        _response_code: text(88, 92)?,
        _response_message: read_text(bytes.get(92..112)?)?,
    })
}

fn read_number(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |number: u64, byte| {
        byte.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')))
    })
}

fn read_text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let text = EUC_KR.decode_without_bom_handling_and_without_replacement(bytes.get(..end)?)?;
    Some(text.into_owned())
}
