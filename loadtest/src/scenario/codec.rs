//! Encoding and decoding beside a floor: the same two messages by hand. Nanoseconds are medians of paired ratios; instructions and heap
//! allocations are counted by valgrind and repeat exactly.

use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use ::codec::{Catalog, Layout, Record, Value, decode, encode};

use crate::Failed;
use crate::figures::Spread;
use crate::floor;
use crate::report::Report;

/// How long, and whether only what repeats exactly is looked at.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Rounds.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Counts instructions and allocations alone; exit 1 when one is above its ceiling.
    #[arg(long)]
    check: bool,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    EncodeBalance,
    EncodeBalanceFloor,
    EncodeTransfer,
    EncodeTransferFloor,
    DecodeBalance,
    DecodeBalanceFloor,
    DecodeTransfer,
    DecodeTransferFloor,
}

/// One operation beside its floor.
struct Pair {
    name: &'static str,
    ours: Work,
    floor: Work,
    /// Instructions and allocations in a release build, the instructions a tenth above what they were: nobody may spend more without
    /// saying so here.
    ceiling: (u64, u64),
}

const PAIRS: [Pair; 4] = [
    Pair {
        name: "encode balance-request, 52 bytes",
        ours: Work::EncodeBalance,
        floor: Work::EncodeBalanceFloor,
        ceiling: (370, 0),
    },
    Pair {
        name: "encode transfer-request, 120 bytes, 24 of Hangul",
        ours: Work::EncodeTransfer,
        floor: Work::EncodeTransferFloor,
        ceiling: (2_880, 0),
    },
    Pair {
        name: "decode balance-reply, 61 bytes, 19 of Hangul",
        ours: Work::DecodeBalance,
        floor: Work::DecodeBalanceFloor,
        ceiling: (2_890, 2),
    },
    Pair {
        name: "decode transfer-reply, 120 bytes, 19 of Hangul",
        ours: Work::DecodeTransfer,
        floor: Work::DecodeTransferFloor,
        ceiling: (3_870, 2),
    },
];

const TRAN_ID: &str = "GWMNU20261130000000001";
const ACCOUNTS: (&str, &str) = ("11012345678901", "22012345678901");
const AMOUNT: u32 = 1_250_000;
const TEXTS: (&str, &str) = ("홍길동", "구월 생활비 이체");

struct Bench {
    balance: Record,
    transfer: Record,
    balance_reply: (Arc<Layout>, Vec<u8>),
    transfer_reply: (Arc<Layout>, Vec<u8>),
    out: Vec<u8>,
}

fn record(layout: &Arc<Layout>, values: &[(&str, Value<'_>)]) -> Result<Record, Failed> {
    let mut record = Record::new(layout);
    for (name, value) in values {
        record = record.with(name, value.clone()).map_err(|error| error.to_string())?;
    }
    Ok(record)
}

impl Bench {
    fn new() -> Result<Self, Failed> {
        let catalog = Catalog::builtin().map_err(|_| "the built-in layouts have faults")?;
        let layout = |name: &str| catalog.get(name).map(Arc::clone).ok_or("there is no such layout");
        let text = Value::Text;
        let accounts = [("fromAccount", text(ACCOUNTS.0)), ("toAccount", text(ACCOUNTS.1))];
        let said = [("responseCode", text("0000")), ("responseMessage", text("정상 처리되었습니다"))];
        let won = |won: u32| Value::Amount(won.into());
        let balance =
            record(&layout("balance-request")?, &[("tranId", text(TRAN_ID)), ("accountNo", text(ACCOUNTS.0))])?;
        let asked =
            [("tranId", text(TRAN_ID)), ("amount", won(AMOUNT)), ("payeeName", text(TEXTS.0)), ("memo", text(TEXTS.1))];
        let transfer = record(&layout("transfer-request")?, &[&accounts[..], &asked].concat())?;
        let told = [("accountNo", text(ACCOUNTS.0)), ("txCode", text("IN01")), ("balance", won(5_853_277))];
        let balance_reply = record(&layout("balance-reply")?, &[&told[..], &said].concat())?;
        let told =
            [("tranId", text(TRAN_ID)), ("txCode", text("TR01")), ("amount", won(AMOUNT)), ("balanceAfter", won(7))];
        let transfer_reply = record(&layout("transfer-reply")?, &[&told[..], &accounts, &said].concat())?;
        let bytes = |record: &Record| {
            let mut out = Vec::new();
            encode(record, &mut out).map_err(|error| error.to_string())?;
            Ok::<_, Failed>((Arc::clone(record.layout()), out))
        };
        let (balance_reply, transfer_reply) = (bytes(&balance_reply)?, bytes(&transfer_reply)?);
        let bench = Self { balance, transfer, balance_reply, transfer_reply, out: Vec::with_capacity(4_096) };
        Ok(bench)
    }

    fn once(&mut self, work: Work) {
        self.out.clear();
        let out = &mut self.out;
        match work {
            // Whoever encodes looks whether it went well; the error itself is made when there is one.
            Work::EncodeBalance => assert!(encode(black_box(&self.balance), out).is_ok()),
            Work::EncodeTransfer => assert!(encode(black_box(&self.transfer), out).is_ok()),
            Work::EncodeBalanceFloor => floor::write_balance(black_box(TRAN_ID), black_box(ACCOUNTS.0), out),
            Work::EncodeTransferFloor => {
                floor::write_transfer(black_box(TRAN_ID), black_box(ACCOUNTS), AMOUNT.into(), black_box(TEXTS), out);
            }
            Work::DecodeBalance => {
                let (layout, bytes) = &self.balance_reply;
                drop(black_box(decode(layout, black_box(bytes))));
            }
            Work::DecodeTransfer => {
                let (layout, bytes) = &self.transfer_reply;
                drop(black_box(decode(layout, black_box(bytes))));
            }
            Work::DecodeBalanceFloor => drop(black_box(floor::read_balance(black_box(&self.balance_reply.1)))),
            Work::DecodeTransferFloor => drop(black_box(floor::read_transfer(black_box(&self.transfer_reply.1)))),
        }
    }

    /// That both sides do the same.
    fn check(&mut self) -> Result<(), Failed> {
        for (ours, by_hand) in
            [(Work::EncodeBalance, Work::EncodeBalanceFloor), (Work::EncodeTransfer, Work::EncodeTransferFloor)]
        {
            self.once(ours);
            let bytes = self.out.clone();
            self.once(by_hand);
            if bytes != self.out {
                return Err(format!("{ours:?} and {by_hand:?} write different bytes").into());
            }
        }
        let both = [
            decode(&self.balance_reply.0, &self.balance_reply.1).is_ok(),
            decode(&self.transfer_reply.0, &self.transfer_reply.1).is_ok(),
            floor::read_balance(&self.balance_reply.1).is_some(),
            floor::read_transfer(&self.transfer_reply.1).is_some(),
        ];
        if both.contains(&false) { Err("a reply does not read".into()) } else { Ok(()) }
    }

    fn nanoseconds(&mut self, work: Work) -> f64 {
        const TIMES: u32 = 20_000;
        let began = Instant::now();
        for _ in 0..TIMES {
            self.once(work);
        }
        began.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    }
}

/// Does something so many times; under valgrind.
pub(crate) fn repeat(work: Work, times: u32) -> Result<(), Failed> {
    let mut bench = Bench::new()?;
    for _ in 0..times {
        bench.once(work);
    }
    Ok(())
}

/// What one more time costs, by the difference of two runs.
fn counted(work: Work, tool: &str, words: (&str, &str)) -> Result<u64, Failed> {
    const MORE: u32 = 1_000;
    let run = |times: u32| -> Result<u64, Failed> {
        let value = clap::ValueEnum::to_possible_value(&work).ok_or("a work without a name")?;
        let mut command = Command::new("valgrind");
        command.args(
            [tool, "--callgrind-out-file=/dev/null"].iter().filter(|word| tool.contains("callgrind") || **word == tool),
        );
        command.arg(std::env::current_exe()?).args(["peer", "codec", value.get_name(), &times.to_string()]);
        let output = command.output().map_err(|error| format!("valgrind (Debian package `valgrind`): {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let count = said.lines().find_map(|line| {
            let (_, behind) = line.split_once(words.0)?;
            let number = if words.1.is_empty() { behind } else { behind.split_once(words.1)?.0 };
            number.trim().replace(',', "").parse().ok()
        });
        count.filter(|_| output.status.success()).ok_or_else(|| format!("valgrind said: {said}").into())
    };
    let (few, many) = (run(MORE)?, run(2 * MORE)?);
    Ok((many.saturating_sub(few) + u64::from(MORE) / 2) / u64::from(MORE))
}

fn instructions(work: Work) -> Result<u64, Failed> {
    counted(work, "--tool=callgrind", ("Collected :", ""))
}

fn allocations(work: Work) -> Result<u64, Failed> {
    counted(work, "--tool=memcheck", ("total heap usage:", "allocs"))
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let mut bench = Bench::new()?;
    bench.check()?;
    let columns = ["", "ns", "floor ns", "÷ floor", "instructions", "floor's", "÷ floor's", "allocations", "floor's"];
    let mut report = Report::new("codec", "Encoding and decoding beside the same by hand", &columns);
    let mut times: Vec<(Vec<f64>, Vec<f64>)> = PAIRS.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for _ in 0..if plan.check { 0 } else { plan.rounds } {
        for (Pair { ours, floor, .. }, (our_times, floor_times)) in PAIRS.iter().zip(&mut times) {
            our_times.push(bench.nanoseconds(*ours));
            floor_times.push(bench.nanoseconds(*floor));
        }
    }
    let mut is_above = false;
    for (Pair { name, ours, floor, ceiling }, (our_times, floor_times)) in PAIRS.iter().zip(&times) {
        let (own, by_hand) = (instructions(*ours)?, instructions(*floor)?);
        let (own_allocations, allocations_by_hand) = (allocations(*ours)?, allocations(*floor)?);
        if own > ceiling.0 || own_allocations > ceiling.1 {
            is_above = true;
            eprintln!(
                "{name}: {own} instructions and {own_allocations} allocations, at most {} and {}",
                ceiling.0, ceiling.1
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let ratio = own as f64 / by_hand as f64;
        report.row(vec![
            (*name).to_owned(),
            Spread::of(our_times).show(0),
            Spread::of(floor_times).show(0),
            Spread::of_ratios(our_times, floor_times).show(2),
            own.to_string(),
            by_hand.to_string(),
            format!("{ratio:.2}"),
            own_allocations.to_string(),
            allocations_by_hand.to_string(),
        ]);
    }
    if !plan.check {
        report.write()?;
    }
    Ok(if is_above { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
