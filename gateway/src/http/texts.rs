//! What callers read, in Korean and in English: one pair of sentences for each failure and each rule. No sentence holds
//! a value.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT_LANGUAGE;
use codec::Rule;

use crate::failure::Failure;

/// The language of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Korean, unless English is asked for.
    Korean,
    /// English.
    English,
}

impl Language {
    /// What the header asks for: the first of `ko` and `en` with the highest weight; Korean if neither is there.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let header = headers.get(ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut best = (Self::Korean, 0.0);
        for item in header.split(',') {
            let (tag, parameters) = item.split_once(';').unwrap_or((item, ""));
            let language = match tag.trim().get(..2).map(str::to_ascii_lowercase).as_deref() {
                Some("en") => Self::English,
                Some("ko") => Self::Korean,
                _ => continue,
            };
            let weight = parameters.trim().strip_prefix("q=").map_or(1.0, |q| q.parse().unwrap_or(0.0));
            if weight > best.1 {
                best = (language, weight);
            }
        }
        best.0
    }

    fn pick<'a>(self, (korean, english): (&'a str, &'a str)) -> &'a str {
        match self {
            Self::Korean => korean,
            Self::English => english,
        }
    }
}

/// The sentence of a failure.
#[must_use]
#[expect(clippy::too_many_lines, reason = "a table: one row a failure")]
pub fn of_failure(failure: Failure, language: Language) -> &'static str {
    use Failure::*;
    language.pick(match failure {
        InvalidRequest => ("요청 형식이 올바르지 않습니다.", "The request is not valid."),
        RequestTimeout => ("요청 본문이 제시간에 도착하지 않았습니다.", "The request body did not arrive in time."),
        BodyTooLarge => ("요청 본문이 너무 큽니다.", "The request body is too large."),
        UnsupportedMediaType => ("본문은 application/json이어야 합니다.", "The body must be application/json."),
        UnmappableCharacter => {
            ("은행 전문으로 보낼 수 없는 문자가 있습니다.", "A character cannot be carried by the bank's charset.")
        }
        FieldTooLong => ("항목의 길이가 허용 범위를 넘습니다.", "A value does not fit into its field."),
        Unauthenticated => ("API 키가 없거나 올바르지 않습니다.", "There is no API key, or it is not known."),
        Forbidden => ("이 키로는 사용할 수 없는 기능입니다.", "This key may not do that."),
        UnknownRoute => ("존재하지 않는 경로입니다.", "There is no such path."),
        MethodNotAllowed => ("허용되지 않는 메서드입니다.", "The path does not take this method."),
        UnknownTransaction => ("해당 거래를 찾을 수 없습니다.", "There is no such transaction."),
        IdempotencyKeyMissing => ("Idempotency-Key 헤더가 필요합니다.", "The Idempotency-Key header is required."),
        IdempotencyKeyInvalid => (
            "Idempotency-Key는 공백 없는 ASCII 문자 1~255자여야 합니다.",
            "The Idempotency-Key must be 1 to 255 visible ASCII characters.",
        ),
        IdempotencyInProgress => (
            "같은 Idempotency-Key의 요청을 처리하고 있습니다.",
            "A request with this Idempotency-Key is being processed.",
        ),
        IdempotencyKeyReused => (
            "이 Idempotency-Key는 다른 내용의 요청에 이미 사용되었습니다.",
            "This Idempotency-Key was used for a request with another body.",
        ),
        IdempotencyUnavailable => (
            "지금은 거래를 접수할 수 없습니다. 기관으로 전송되지 않았습니다.",
            "Mutations cannot be accepted now. Nothing was sent.",
        ),
        RateLimited => ("호출 한도를 초과했습니다.", "The rate limit is used up."),
        Overloaded => (
            "요청이 많아 지금은 처리할 수 없습니다. 기관으로 전송되지 않았습니다.",
            "Too many requests are under way. Nothing was sent.",
        ),
        Draining => (
            "서비스가 종료되는 중입니다. 기관으로 전송되지 않았습니다.",
            "The gateway is shutting down. Nothing was sent.",
        ),
        NoLedgerRoom => (
            "원장을 기록할 수 없어 접수하지 않았습니다. 기관으로 전송되지 않았습니다.",
            "The ledger cannot take more, so nothing was accepted or sent.",
        ),
        LedgerUnreadable => ("지금은 원장을 조회할 수 없습니다.", "The ledger cannot be read now."),
        NotResolvable => (
            "확인할 수 있는 상태의 거래가 아닙니다.",
            "The transaction is not in a state that can be resolved this way.",
        ),
        ResolutionInProgress => ("다른 곳에서 확인하고 있는 거래입니다.", "The transaction is being resolved already."),
        UnknownRun => ("해당 대사 작업을 찾을 수 없습니다.", "There is no such reconciliation run."),
        RepeatInDoubt => (
            "같은 Idempotency-Key의 거래 결과를 아직 알 수 없습니다.",
            "The result of the transaction with this Idempotency-Key is not known yet.",
        ),
        RepeatNotProcessed => (
            "같은 Idempotency-Key의 거래는 처리되지 않은 것으로 확인되었습니다.",
            "The transaction with this Idempotency-Key was confirmed as not processed.",
        ),
        RepeatCanceled => (
            "같은 Idempotency-Key의 거래는 취소되었습니다.",
            "The transaction with this Idempotency-Key was cancelled.",
        ),
        CircuitOpen => (
            "기관 장애로 호출을 차단하고 있습니다. 기관으로 전송되지 않았습니다.",
            "Calls to the institution are suspended. Nothing was sent.",
        ),
        BudgetExhausted => (
            "기관과 약정한 호출 한도를 모두 사용했습니다. 기관으로 전송되지 않았습니다.",
            "The calls that the institution allows at the moment are used up. Nothing was sent.",
        ),
        BudgetUnavailable => (
            "호출 한도를 확인할 수 없습니다. 기관으로 전송되지 않았습니다.",
            "Whether the institution allows another call cannot be told now. Nothing was sent.",
        ),
        PoolExhausted => (
            "기관 회선이 모두 사용 중입니다. 기관으로 전송되지 않았습니다.",
            "All lines to the institution are busy. Nothing was sent.",
        ),
        NoLocalSocket => (
            "게이트웨이의 연결 자원이 부족합니다. 기관으로 전송되지 않았습니다.",
            "The gateway has no socket to connect with. Nothing was sent.",
        ),
        IntentNotDurable => {
            ("원장을 기록할 수 없어 전송하지 않았습니다.", "The ledger could not be written, so nothing was sent.")
        }
        DeadlineBeforeSend => (
            "전송 전에 제한 시간이 지났습니다. 기관으로 전송되지 않았습니다.",
            "The deadline passed before sending. Nothing was sent.",
        ),
        HostUnreachable => (
            "기관에 연결할 수 없습니다. 기관으로 전송되지 않았습니다.",
            "The institution cannot be reached. Nothing was sent.",
        ),
        WroteNothingFresh | WroteNothingReused => (
            "기관과의 연결이 끊어졌습니다. 기관으로 전송되지 않았습니다.",
            "The connection broke before a byte was sent.",
        ),
        ShutdownBeforeSend => ("서비스 종료로 전송하지 않았습니다.", "The gateway shut down before sending."),
        InternalBeforeSend => ("게이트웨이 오류로 전송하지 않았습니다.", "The gateway failed before sending."),
        WriteBroken => ("전송이 중단되어 처리 결과를 알 수 없습니다.", "Sending broke off; the result is not known."),
        ReadTimeout => (
            "기관의 응답이 제시간에 오지 않아 처리 결과를 알 수 없습니다.",
            "No whole reply came in time; the result is not known.",
        ),
        ConnectionLost | StaleConnection => (
            "응답 전에 연결이 끊어져 처리 결과를 알 수 없습니다.",
            "The connection ended before the reply; the result is not known.",
        ),
        BadFrame => (
            "응답 전문의 길이가 올바르지 않아 처리 결과를 알 수 없습니다.",
            "The reply's length makes no sense; the result is not known.",
        ),
        EchoMismatch => (
            "다른 거래의 응답이 수신되어 처리 결과를 알 수 없습니다.",
            "A reply to another request came; the result is not known.",
        ),
        UndecodableReply => (
            "기관의 응답을 해석할 수 없어 처리 결과를 알 수 없습니다.",
            "The reply cannot be read; the result is not known.",
        ),
        InDoubtCode => {
            ("기관의 응답 코드로는 처리 결과를 알 수 없습니다.", "The institution's code does not tell the result.")
        }
        DuplicateId => (
            "기관이 이미 사용된 거래번호로 응답하여 처리 결과를 알 수 없습니다.",
            "The institution has seen this transaction id before; the result is not known.",
        ),
        ShutdownAfterSend => (
            "서비스 종료로 응답을 받지 못해 처리 결과를 알 수 없습니다.",
            "The gateway shut down before the reply; the result is not known.",
        ),
        InternalAfterSend => (
            "게이트웨이 오류로 처리 결과를 알 수 없습니다.",
            "The gateway failed after sending; the result is not known.",
        ),
        HostDeclined => ("기관이 거래를 거절했습니다.", "The institution declined."),
        HostNotProcessed => {
            ("기관 시스템 오류로 처리되지 않았습니다.", "The institution had a system error and did not process.")
        }
        OutcomeNotDurable => (
            "결과를 기록하지 못해 처리 결과를 확인해야 합니다.",
            "The outcome could not be recorded; the result must be looked up.",
        ),
    })
}

/// The sentence of a rule that a field breaks; it follows the field's name.
#[must_use]
pub fn of_rule(rule: Rule, language: Language) -> String {
    let korean = match rule {
        Rule::Unmappable => "전문 문자셋으로 표현할 수 없는 문자가 있습니다",
        Rule::TooLong => "항목 길이를 초과합니다",
        Rule::NotDigits => "숫자만 허용됩니다",
        Rule::Empty => "비어 있을 수 없습니다",
        Rule::OutOfRange => "허용 범위를 벗어났습니다",
        Rule::NotADate => "YYYYMMDD 형식의 날짜여야 합니다",
        Rule::NotATime => "HHMMSS 형식의 시각이어야 합니다",
        Rule::ControlCharacter => "제어 문자를 포함할 수 없습니다",
        Rule::TrailingSpace => "공백으로 끝날 수 없습니다",
        Rule::Missing => "필수 항목입니다",
        Rule::UnknownField => "정의되지 않은 항목이 있습니다",
        Rule::Duplicate => "같은 항목이 두 번 이상 있습니다",
        Rule::WrongType => "값의 자료형이 올바르지 않습니다",
        Rule::NotAPlainInteger => "정수여야 합니다",
        Rule::MustDiffer => "다른 항목과 달라야 합니다",
        _ => "규칙에 맞지 않습니다",
    };
    match language {
        Language::Korean => korean.to_owned(),
        Language::English => rule.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn korean_unless_english_is_preferred() {
        let of = |header: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_LANGUAGE, header.parse().unwrap());
            Language::of(&headers)
        };
        assert_eq!(Language::of(&HeaderMap::new()), Language::Korean);
        for (header, language) in [
            ("en", Language::English),
            ("en-US,en;q=0.9,ko;q=0.8", Language::English),
            ("ko-KR,ko;q=0.9,en;q=0.8", Language::Korean),
            ("fr, en;q=0.5", Language::English),
            ("de", Language::Korean),
            ("en;q=0.2, ko;q=0.7", Language::Korean),
        ] {
            assert_eq!(of(header), language, "{header}");
        }
    }
}
