//! Fixed-length bank messages (전문) as data: bytes to records and back.
//!
//! This crate is pure: no clock, no sockets, no runtime. A message is described by a [`Layout`], a TOML file; a
//! [`Catalog`] holds a folder of them. [`encode()`] and [`decode()`] fail closed: a character, a number or a byte that
//! does not fit is an error which names the field and the rule, never the value.

mod ascii;
mod catalog;
mod charset;
mod decode;
mod encode;
mod error;
mod field;
mod frame;
mod json;
mod layout;
mod mask;
mod record;

pub use catalog::Catalog;
pub use charset::Charset;
pub use decode::decode;
pub use encode::encode;
pub use error::{FieldError, FrameError, LayoutError, Rule};
pub use field::{Field, FieldType, Fill, Origin};
pub use frame::{FrameCodec, Framing, LengthForm, LengthPrefix, Side};
pub use layout::Layout;
pub use mask::MaskedAccount;
pub use record::{Accepts, Record, Value, View};
