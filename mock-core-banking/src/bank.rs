//! The bank's books: balances, transfers by transaction id, tombstones, the settlement list. Pure and synchronous; the
//! server holds the lock. Money is conserved by every operation, and [`Bank::delta`] recomputes that from the balances.

use std::collections::HashMap;

/// Result code: done.
pub(crate) const OK: &str = "0000";
/// Result code: done, and more pages follow.
pub(crate) const MORE: &str = "0002";
/// Result code: no such account or original.
pub(crate) const NO_SUCH: &str = "0001";
/// Result code: insufficient funds.
pub(crate) const INSUFFICIENT: &str = "0011";
/// Result code: this id was used before.
pub(crate) const DUPLICATE: &str = "0021";
/// Result code: the original is net-cancelled.
pub(crate) const CANCELLED: &str = "0091";

/// Most records in one settlement reply: 24 + 50·199 = 9,974 of 9,999 bytes.
const PAGE: usize = 199;

/// What became of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BookingState {
    /// The money moved and stands.
    Applied,
    /// The money moved and was moved back.
    Cancelled,
    /// Never seen, but cancelled: it is refused if it still comes.
    Tombstone,
    /// Refused for a business reason.
    Declined,
}

/// One transfer in the books.
#[derive(Debug, Clone)]
pub struct Booking {
    /// What became of it.
    pub state: BookingState,
    /// The payer's account, 14 digits; empty when the original was never seen.
    pub from: String,
    /// The payee's account, 14 digits; empty when the original was never seen.
    pub to: String,
    /// In won.
    pub amount: i64,
}

/// The balance in won with which an account opens; it follows from the number alone.
///
/// With h the 32-bit hash `h = 31·h + byte` over the digits without left zeros, sign bit cleared, it is
/// 1,000 × (1,000 + h mod 8,999,000). `None` for the all-zero number, which is no account.
#[must_use]
pub fn opening_balance(account: &str) -> Option<i64> {
    let digits = account.trim_start_matches('0');
    if digits.is_empty() {
        return None;
    }
    let hash = digits.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    Some(1_000 * (1_000 + i64::from(hash & 0x7FFF_FFFF) % 8_999_000))
}

/// The memory of the bank.
#[derive(Debug, Default)]
pub struct Bank {
    /// Current balances of the accounts that money moved on.
    touched: HashMap<String, i64>,
    bookings: HashMap<String, Booking>,
    /// Ids of processed transfers in processing order; append-only, so that a page never shifts.
    processed: HashMap<String, Vec<String>>,
}

/// One line of the settlement list.
pub(crate) struct Settled<'a> {
    pub(crate) id: &'a str,
    pub(crate) booking: &'a Booking,
}

/// The day that stands inside a transaction id (characters 6 to 13), as YYYYMMDD.
pub(crate) fn day_of(id: &str) -> &str {
    id.get(5..13).unwrap_or_default()
}

impl Bank {
    /// The balance in won; `None` for the all-zero number.
    #[must_use]
    pub fn balance(&self, account: &str) -> Option<i64> {
        self.touched.get(account).copied().or_else(|| opening_balance(account))
    }

    /// What the books say of a transaction id.
    #[must_use]
    pub fn booking(&self, id: &str) -> Option<&Booking> {
        self.bookings.get(id)
    }

    /// Every transfer and tombstone by its transaction id, in no order.
    pub fn bookings(&self) -> impl Iterator<Item = (&str, &Booking)> {
        self.bookings.iter().map(|(id, booking)| (id.as_str(), booking))
    }

    /// Sum of current minus opening balances; anything but 0 is a fault of this program.
    #[must_use]
    pub fn delta(&self) -> i64 {
        self.touched.iter().map(|(account, now)| now - opening_balance(account).unwrap_or_default()).sum()
    }

    /// Moves money once. Returns the result code and the payer's balance afterwards.
    pub(crate) fn transfer(&mut self, id: &str, from: &str, to: &str, amount: i64) -> (&'static str, i64) {
        match self.bookings.get(id).map(|booking| booking.state) {
            Some(BookingState::Tombstone | BookingState::Cancelled) => return (CANCELLED, 0),
            Some(BookingState::Applied | BookingState::Declined) => return (DUPLICATE, 0),
            None => {}
        }
        let (code, state, left) = match (self.balance(from), self.balance(to)) {
            (Some(payer), Some(payee)) if payer >= amount && from != to => {
                self.touched.insert(from.to_owned(), payer - amount);
                self.touched.insert(to.to_owned(), payee + amount);
                self.processed.entry(day_of(id).to_owned()).or_default().push(id.to_owned());
                (OK, BookingState::Applied, payer - amount)
            }
            (Some(payer), Some(_)) => (INSUFFICIENT, BookingState::Declined, payer),
            _ => (NO_SUCH, BookingState::Declined, 0),
        };
        let booking = Booking { state, from: from.to_owned(), to: to.to_owned(), amount };
        self.bookings.insert(id.to_owned(), booking);
        (code, left)
    }

    /// Books a transfer as if it had come over the wire, for tests that need a day of them.
    pub fn book(&mut self, id: &str, from: &str, to: &str, amount: i64) {
        self.transfer(id, from, to, amount);
    }

    /// Lists a processed transfer once more, as a bank whose settlement list is wrong.
    pub fn list_again(&mut self, id: &str) {
        self.processed.entry(day_of(id).to_owned()).or_default().push(id.to_owned());
    }

    /// Undoes an original once, or makes sure that it will never be applied. Returns the cancel result:
    /// `01` cancelled, `02` nothing to undo, `03` cannot be undone because the payee has spent it.
    pub(crate) fn net_cancel(&mut self, id: &str) -> &'static str {
        let Some(booking) = self.bookings.get_mut(id) else {
            let tombstone =
                Booking { state: BookingState::Tombstone, from: String::new(), to: String::new(), amount: 0 };
            self.bookings.insert(id.to_owned(), tombstone);
            return "02";
        };
        match booking.state {
            BookingState::Cancelled => "01",
            BookingState::Tombstone => "02",
            BookingState::Declined => {
                booking.state = BookingState::Tombstone;
                "02"
            }
            BookingState::Applied => {
                let (Some(payer), Some(payee)) = (self.touched.get(&booking.from), self.touched.get(&booking.to))
                else {
                    return "03";
                };
                if *payee < booking.amount {
                    return "03";
                }
                let (payer, payee) = (payer + booking.amount, payee - booking.amount);
                self.touched.insert(booking.from.clone(), payer);
                self.touched.insert(booking.to.clone(), payee);
                booking.state = BookingState::Cancelled;
                "01"
            }
        }
    }

    /// Whether the money of an original moved and stands (`01` or `02`), and the result code that says why not.
    pub(crate) fn status(&self, id: &str) -> (&'static str, &'static str) {
        match self.bookings.get(id).map(|booking| booking.state) {
            Some(BookingState::Applied) => ("01", OK),
            Some(BookingState::Declined) => ("02", INSUFFICIENT),
            Some(BookingState::Cancelled | BookingState::Tombstone) => ("02", CANCELLED),
            None => ("02", NO_SUCH),
        }
    }

    /// One page of the settlement list of a day, and whether more follow.
    pub(crate) fn settlement(&self, day: &str, already: usize) -> (Vec<Settled<'_>>, bool) {
        let ids = self.processed.get(day).map_or(&[][..], Vec::as_slice);
        let rest = ids.get(already..).unwrap_or_default();
        let settle = |id: &'_ String| self.bookings.get_key_value(id);
        let page = rest.iter().take(PAGE).filter_map(settle).map(|(id, booking)| Settled { id, booking }).collect();
        (page, rest.len() > PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "GWMNU202611290000001A3";
    const FROM: &str = "12345678901234";
    const TO: &str = "00000000000007";

    #[test]
    fn an_opening_balance_follows_from_the_number() {
        assert_eq!(opening_balance(FROM), Some(6_879_445_000));
        assert_eq!(opening_balance("0000123"), opening_balance("123"));
        assert_eq!(opening_balance("00000000000000"), None);
    }

    #[test]
    fn a_transfer_is_applied_once_and_money_is_conserved() {
        let mut bank = Bank::default();
        let opening = bank.balance(FROM).unwrap();
        assert_eq!(bank.transfer(ID, FROM, TO, 5_000), (OK, opening - 5_000));
        assert_eq!(bank.transfer(ID, FROM, TO, 5_000).0, DUPLICATE);
        assert_eq!(bank.balance(FROM), Some(opening - 5_000));
        assert_eq!(bank.delta(), 0);
        assert_eq!(bank.status(ID), ("01", OK));
    }

    #[test]
    fn a_net_cancel_undoes_once_and_a_repeat_is_still_success() {
        let mut bank = Bank::default();
        let opening = bank.balance(FROM).unwrap();
        bank.transfer(ID, FROM, TO, 5_000);
        assert_eq!([bank.net_cancel(ID), bank.net_cancel(ID)], ["01", "01"]);
        assert_eq!((bank.balance(FROM), bank.delta()), (Some(opening), 0));
        assert_eq!(bank.status(ID), ("02", CANCELLED));
        assert_eq!(bank.transfer(ID, FROM, TO, 5_000).0, CANCELLED);
    }

    #[test]
    fn an_original_that_comes_after_its_cancel_is_refused() {
        let mut bank = Bank::default();
        assert_eq!(bank.net_cancel(ID), "02");
        assert_eq!(bank.transfer(ID, FROM, TO, 5_000).0, CANCELLED);
        assert_eq!(bank.booking(ID).unwrap().state, BookingState::Tombstone);
        assert_eq!(bank.delta(), 0);
    }

    #[test]
    fn what_the_payee_has_spent_cannot_be_undone() {
        let mut bank = Bank::default();
        let all = bank.balance(TO).unwrap() + 5_000;
        bank.transfer(ID, FROM, TO, 5_000);
        assert_eq!(bank.transfer("GWMNU202611290000001A4", TO, "00000000000009", all).0, OK);
        assert_eq!(bank.net_cancel(ID), "03");
        assert_eq!(bank.delta(), 0);
    }

    #[test]
    fn declined_transfers_move_nothing() {
        let mut bank = Bank::default();
        let too_much = bank.balance(FROM).unwrap() + 1;
        assert_eq!(bank.transfer(ID, FROM, TO, too_much).0, INSUFFICIENT);
        assert_eq!(bank.transfer("GWMNU202611290000001A4", FROM, "00000000000000", 1).0, NO_SUCH);
        assert_eq!(bank.status(ID), ("02", INSUFFICIENT));
        assert_ne!(bank.transfer("GWMNU202611290000001A5", FROM, FROM, 1).0, OK);
        assert!(bank.touched.is_empty());
    }

    #[test]
    fn the_settlement_list_is_paged_and_does_not_shift() {
        let mut bank = Bank::default();
        for serial in 0..450 {
            bank.transfer(&format!("GWMNU20261129{serial:09}"), FROM, TO, 1);
        }
        bank.net_cancel("GWMNU20261129000000003");
        let (first, more) = bank.settlement("20261129", 0);
        assert_eq!((first.len(), more), (199, true));
        assert_eq!(first.get(3).unwrap().booking.state, BookingState::Cancelled);
        let (last, more) = bank.settlement("20261129", 398);
        assert_eq!((last.len(), more), (52, false));
        assert_eq!(bank.settlement("20261130", 0).0.len(), 0);
        // Read page by page while transfers come in: no gap, no repeat.
        let mut seen: Vec<String> = Vec::new();
        for late in 0..10 {
            let (page, more) = bank.settlement("20261129", seen.len());
            seen.extend(page.iter().map(|line| line.id.to_owned()));
            if !more {
                break;
            }
            bank.transfer(&format!("GWMNU20261129L{late:08}"), FROM, TO, 1);
        }
        let unique: std::collections::HashSet<_> = seen.iter().collect();
        assert_eq!((seen.len(), unique.len()), (452, 452));
    }
}
