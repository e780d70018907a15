//! One request to one reply: reads the message, asks the bank, writes the answer. Knows every message of the built-in
//! bank; timing and faults are `server`'s.

use std::sync::Arc;

use codec::{Catalog, FieldType, Layout, LayoutError, Origin, Record, Value, decode, encode};

use crate::bank::{Bank, BookingState, CANCELLED, DUPLICATE, INSUFFICIENT, MORE, NO_SUCH, OK, day_of};

/// A request that was read, not yet processed.
pub(crate) struct Request {
    pub(crate) message: Message,
    record: Record,
}

/// The reply and what it says.
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) code: String,
    layout: Arc<Layout>,
}

/// The requests that this bank understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Balance,
    Status,
    NetCancel,
    History,
    Settlement,
    SettlementPage,
    Transfer,
    ExchangeRate,
}

impl Message {
    /// The four digits on the wire.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Balance => "0200",
            Self::Status => "0400",
            Self::NetCancel => "0420",
            Self::History => "0300",
            Self::Settlement | Self::SettlementPage => "0500",
            Self::Transfer => "0600",
            Self::ExchangeRate => "0700",
        }
    }

    /// Whether the request is about another one, so that its code speaks of that one.
    pub(crate) fn asks_about_an_original(self) -> bool {
        matches!(self, Self::Status | Self::NetCancel)
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        Some(match bytes.get(..4)? {
            b"0200" => Self::Balance,
            b"0400" => Self::Status,
            b"0420" => Self::NetCancel,
            b"0300" => Self::History,
            // A filler means nothing, so only digits there are a page key.
            b"0500" if bytes.get(12..).is_some_and(|key| key.iter().all(u8::is_ascii_digit)) => Self::SettlementPage,
            b"0500" => Self::Settlement,
            b"0600" => Self::Transfer,
            b"0700" => Self::ExchangeRate,
            _ => return None,
        })
    }

    fn layouts(self) -> (&'static str, &'static str) {
        match self {
            Self::Balance => ("balance-request", "balance-reply"),
            Self::Status => ("status-request", "status-reply"),
            Self::NetCancel => ("net-cancel-request", "net-cancel-reply"),
            Self::History => ("history-request", "history-reply"),
            Self::Settlement => ("settlement-request", "settlement-reply"),
            Self::SettlementPage => ("settlement-page-request", "settlement-reply"),
            Self::Transfer => ("transfer-request", "transfer-reply"),
            Self::ExchangeRate => ("exchange-rate-request", "exchange-rate-reply"),
        }
    }
}

/// Reads requests and writes replies with the built-in layouts.
#[derive(Debug)]
pub(crate) struct Desk {
    catalog: Catalog,
}

impl Desk {
    pub(crate) fn new() -> Result<Self, Vec<LayoutError>> {
        Catalog::builtin().map(|catalog| Self { catalog })
    }

    /// `None` for bytes that are no request of this bank.
    pub(crate) fn read(&self, bytes: &[u8]) -> Option<Request> {
        let message = Message::of(bytes)?;
        let layout = self.catalog.get(message.layouts().0)?;
        let record = decode(layout, bytes).ok()?;
        Some(Request { message, record })
    }

    /// Processes the request and writes the reply.
    pub(crate) fn answer(&self, request: &Request, bank: &mut Bank) -> Option<Reply> {
        let record = &request.record;
        let text = |name| record.text(name);
        let draft = Draft::default();
        let draft = match request.message {
            Message::Balance => {
                let balance = bank.balance(text("accountNo"));
                let draft = draft.amount("balance", balance.unwrap_or_default());
                if balance.is_some() { draft.code(OK) } else { draft.code(NO_SUCH) }
            }
            Message::Status => {
                let (flag, code) = bank.status(text("origTranId"));
                draft.text("processedFlag", flag).code(code)
            }
            Message::NetCancel => {
                let result = bank.net_cancel(text("origTranId"));
                draft.text("cancelResult", result).message(message_for_cancel(result)).code(OK)
            }
            Message::History => history(record, bank, draft),
            Message::Settlement => settlement(bank, text("settleDate"), 0, draft),
            Message::SettlementPage => {
                let already = text("pageKey").parse().unwrap_or_default();
                settlement(bank, text("settleDate"), already, draft)
            }
            Message::Transfer => {
                let amount = if let Value::Amount(won) = record.get("amount") { won } else { 0 };
                let (code, left) = bank.transfer(text("tranId"), text("fromAccount"), text("toAccount"), amount);
                draft.amount("balanceAfter", left).code(code)
            }
            Message::ExchangeRate => exchange_rate(record, draft),
        };
        self.write(request, draft)
    }

    /// Answers with a code and processes nothing.
    pub(crate) fn refuse(&self, request: &Request, code: &str) -> Option<Reply> {
        self.write(request, Draft::default().code(code))
    }

    fn write(&self, request: &Request, draft: Draft<'_>) -> Option<Reply> {
        let layout = self.catalog.get(request.message.layouts().1)?;
        let mut record = Record::new(layout);
        for (index, field) in layout.fields().iter().enumerate() {
            let value = if field.is_echo() {
                echo_of(request, field.name())
            } else if field.name() == "responseMessage" {
                Value::Text(draft.message.unwrap_or_else(|| message_for(request.message, &draft.code)))
            } else {
                draft.value(field.name()).unwrap_or_else(|| zero(field.kind()))
            };
            record.set_at(index, value);
        }
        let mut bytes = Vec::new();
        encode(&record, &mut bytes).ok()?;
        Some(Reply { bytes, code: draft.code, layout: Arc::clone(layout) })
    }
}

/// A reply's `txCode` echoes a constant of the request, which a record does not hold.
fn echo_of<'a>(request: &'a Request, name: &str) -> Value<'a> {
    let Some(field) = request.record.layout().field(name) else { return Value::Absent };
    match field.origin() {
        Origin::Constant(bytes) => Value::Text(std::str::from_utf8(bytes).unwrap_or_default()),
        _ => request.record.get(name),
    }
}

fn zero(kind: FieldType) -> Value<'static> {
    match kind {
        FieldType::Amount => Value::Amount(0),
        FieldType::Date => Value::Text("20260101"),
        FieldType::Text => Value::Text(""),
        FieldType::Group => Value::Records(Vec::new()),
        _ => Value::Absent,
    }
}

impl Reply {
    /// Plants `X?A` where a number should stand.
    pub(crate) fn spoil_number(&mut self) {
        let fields = self.layout.fields();
        let count = fields.iter().find(|field| *field.origin() == Origin::Count);
        let numeric = |kind| matches!(kind, FieldType::Number | FieldType::Amount);
        let number = fields.iter().find(|field| numeric(field.kind()) && !field.is_echo());
        let Some(field) = count.or(number) else { return };
        if let Some(bytes) = self.bytes.get_mut(field.offset()..field.offset() + 3) {
            bytes.copy_from_slice(b"X?A");
        }
    }

    /// Makes the echo another one's: the first account, else the first echo.
    pub(crate) fn spoil_echo(&mut self) {
        let echoes = || self.layout.fields().iter().filter(|field| field.is_echo());
        let account = echoes().find(|field| field.kind() == FieldType::Digits);
        let Some(field) = account.or_else(|| echoes().next()) else { return };
        if let Some(last) = self.bytes.get_mut(field.offset() + field.length() - 1) {
            *last ^= 1;
        }
    }
}

/// What the bank decided, before it is written down.
#[derive(Default)]
struct Draft<'a> {
    code: String,
    message: Option<&'static str>,
    values: Vec<(&'static str, Value<'a>)>,
}

impl<'a> Draft<'a> {
    fn code(mut self, code: &str) -> Self {
        code.clone_into(&mut self.code);
        self
    }

    fn message(mut self, message: &'static str) -> Self {
        self.message = Some(message);
        self
    }

    fn set(mut self, name: &'static str, value: Value<'a>) -> Self {
        self.values.push((name, value));
        self
    }

    fn text(self, name: &'static str, text: &'a str) -> Self {
        self.set(name, Value::Text(text))
    }

    fn amount(self, name: &'static str, won: i64) -> Self {
        self.set(name, Value::Amount(won))
    }

    fn value(&self, name: &str) -> Option<Value<'_>> {
        if name == "responseCode" {
            return Some(Value::Text(&self.code));
        }
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

/// Entries that follow from the account number: as many as were asked for, oldest first, alternating in and out.
fn history<'a>(record: &'a Record, bank: &Bank, draft: Draft<'a>) -> Draft<'a> {
    let Some(mut balance) = bank.balance(record.text("accountNo")) else { return draft.code(NO_SUCH) };
    let (from, to) = (record.text("fromDate"), record.text("toDate"));
    let asked = if let Value::Number(asked) = record.get("reqCount") { asked } else { 0 };
    let count = if from > to { 0 } else { asked };
    let mut rows = Vec::new();
    for seq in 1..=count {
        let incoming = seq % 2 == 1;
        let won = 1_000 * i64::try_from(seq).unwrap_or_default();
        balance += if incoming { won } else { -won };
        let text = Value::Text;
        rows.push(vec![
            Value::Number(seq),
            text(if incoming { from } else { to }),
            text(if incoming { "입금" } else { "출금" }),
            Value::Amount(won),
            Value::Amount(balance),
            text(if incoming { "급여이체" } else { "카드결제" }),
        ]);
    }
    draft.set("records", Value::Records(rows)).code(OK)
}

fn settlement<'a>(bank: &'a Bank, day: &str, already: usize, draft: Draft<'a>) -> Draft<'a> {
    let (page, more) = bank.settlement(day, already);
    let text = Value::Text;
    let row = |line: crate::bank::Settled<'a>| {
        let flag = if line.booking.state == BookingState::Cancelled { "99" } else { "00" };
        vec![text(line.id), text(&line.booking.from), Value::Amount(line.booking.amount), text(flag)]
    };
    let rows = page.into_iter().map(row).collect();
    draft.set("records", Value::Records(rows)).code(if more { MORE } else { OK })
}

/// Won times 10,000 for one unit. The rate's date is the day in the request's transaction id.
fn exchange_rate<'a>(record: &'a Record, draft: Draft<'a>) -> Draft<'a> {
    let rate = match record.text("currency") {
        "USD" => 13_955_000,
        "EUR" => 15_120_000,
        "JPY" => 93_100,
        "CNY" => 1_925_000,
        "GBP" => 17_640_000,
        _ => return draft.code(NO_SUCH),
    };
    let day = day_of(record.text("tranId"));
    let day = if day.bytes().all(|byte| byte.is_ascii_digit()) { day } else { "20260101" };
    draft.text("rateDate", day).amount("baseRate", rate).code(OK)
}

fn message_for_cancel(result: &str) -> &'static str {
    match result {
        "01" => "취소되었습니다",
        "02" => "원거래가 없습니다",
        _ => "취소할 수 없습니다",
    }
}

fn message_for(message: Message, code: &str) -> &'static str {
    match (message, code) {
        (Message::Transfer, OK) => "이체가 완료되었습니",
        (Message::Status, OK) => "처리된 거래입니다",
        (_, OK) => "정상 처리되었습니다",
        (Message::Status, NO_SUCH) => "원거래가 없습니다",
        (_, NO_SUCH) => "없는 계좌입니다",
        (_, INSUFFICIENT) => "잔액이 부족합니다",
        (_, DUPLICATE) => "중복된 거래입니다",
        (_, CANCELLED) => "취소된 거래입니다",
        (_, "0098") => "처리되지 않았습니다",
        _ => "시스템 오류입니다",
    }
}

impl Request {
    /// The account that decides the fault: `accountNo` or `fromAccount`.
    pub(crate) fn account(&self) -> &str {
        match self.record.text("accountNo") {
            "" => self.record.text("fromAccount"),
            account => account,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(desk: &Desk, bank: &mut Bank, hex: &str) -> String {
        let request = desk.read(&from_hex(hex)).expect("a request");
        let reply = desk.answer(&request, bank).expect("a reply");
        reply.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// The golden bytes of the codec, made by another encoder: this is what the simulator must say.
    #[test]
    fn the_simulator_says_the_golden_bytes() {
        let golden = include_str!("../../codec/tests/golden/messages.jsonl");
        let of = |layout: &str, nth: usize| {
            let line =
                golden.lines().filter(|line| line.contains(&format!("\"layout\": \"{layout}\""))).nth(nth).unwrap();
            line.split("\"hex\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        let (desk, mut bank) = (Desk::new().unwrap(), Bank::default());
        assert_eq!(ask(&desk, &mut bank, &of("balance-request", 0)), of("balance-reply", 0));
        assert_eq!(ask(&desk, &mut bank, &of("exchange-rate-request", 0)), of("exchange-rate-reply", 0));
        bank.transfer("GWMNU202611290000001A3", "10000000000001", "20000000000002", 10_000);
        assert_eq!(ask(&desk, &mut bank, &of("status-request", 0)), of("status-reply", 0));
        let mut empty = Bank::default();
        assert_eq!(ask(&desk, &mut empty, &of("net-cancel-request", 0)), of("net-cancel-reply", 0));
    }

    #[test]
    fn a_filler_that_holds_letters_is_no_page_key_and_an_odd_id_gets_a_rate() {
        let (desk, mut bank) = (Desk::new().unwrap(), Bank::default());
        let request = desk.read(b"050020261129ABCDEFGH").expect("a plain request");
        assert_eq!(request.message, Message::Settlement);
        assert!(desk.answer(&request, &mut bank).is_some());
        let request = desk.read(b"0700ABCDEFGHIJKLMNOPQRSTUVFX01USD       ").expect("a rate request");
        assert!(desk.answer(&request, &mut bank).is_some());
    }
}
