//! `gwanmun decode` and `gwanmun encode`: a message by hand. These show values, because the one who runs them brought them.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use codec::{Accepts, Catalog, Field, FieldType, Layout, Record, View};

use super::{EXIT_CONFIG, EXIT_DATA, complain, flush};

#[derive(Debug, clap::Args)]
pub(super) struct Decode {
    /// The layout's name.
    layout: String,
    /// A folder with more layouts.
    #[arg(long)]
    layouts: Option<PathBuf>,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Encode {
    /// The layout's name.
    layout: String,
    /// A folder with more layouts.
    #[arg(long)]
    layouts: Option<PathBuf>,
    /// Raw bytes instead of hex.
    #[arg(long)]
    raw: bool,
}

pub(super) fn decode(arguments: &Decode) -> ExitCode {
    let (layout, input) = match prepare(&arguments.layout, arguments.layouts.as_ref()) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    let bytes = message_bytes(&layout, input);
    let record = match codec::decode(&layout, &bytes) {
        Ok(record) => record,
        Err(error) => return complain(EXIT_DATA, &error.to_string()),
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&record.view(View::All)).unwrap_or_default());
    } else {
        println!("{:>6} {:>6}  {:<18} value", "offset", "length", "field");
        show_fields(layout.fields(), &layout, &bytes, 0);
    }
    flush()
}

fn show_fields(fields: &[Field], layout: &Layout, bytes: &[u8], base: usize) {
    for field in fields {
        let at = base + field.offset();
        if field.kind() == FieldType::Group {
            let records = bytes.len().saturating_sub(at) / field.length().max(1);
            for number in 0..records {
                println!("{:>6} {:>6}  {} {}", at + number * field.length(), field.length(), field.name(), number + 1);
                show_fields(field.fields(), layout, bytes, at + number * field.length());
            }
            continue;
        }
        let own = bytes.get(at..at + field.length()).unwrap_or_default();
        let mut text = String::new();
        if layout.charset().decode_to(own, &mut text).is_err() {
            text.clear();
        }
        println!("{at:>6} {:>6}  {:<18} {}", field.length(), field.name(), text.trim_end());
    }
}

pub(super) fn encode(arguments: &Encode) -> ExitCode {
    let (layout, input) = match prepare(&arguments.layout, arguments.layouts.as_ref()) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    let record = match Record::from_json(&layout, &input, Accepts::All) {
        Ok(record) => record,
        Err(Some(error)) => return complain(EXIT_DATA, &error.to_string()),
        Err(None) => return complain(EXIT_DATA, "the input is not a JSON object"),
    };
    let mut bytes = Vec::new();
    if let Err(error) = codec::encode(&record, &mut bytes) {
        return complain(EXIT_DATA, &error.to_string());
    }
    if !arguments.raw {
        println!("{}", hex::encode(&bytes));
        return flush();
    }
    match std::io::stdout().write_all(&bytes) {
        Ok(()) => flush(),
        Err(error) => complain(EXIT_DATA, &error.to_string()),
    }
}

fn prepare(name: &str, folder: Option<&PathBuf>) -> Result<(Arc<Layout>, Vec<u8>), ExitCode> {
    let catalog = Catalog::builtin().and_then(|mut catalog| {
        if let Some(folder) = folder {
            catalog.merge(Catalog::from_folder(folder)?)?;
        }
        Ok(catalog)
    });
    let catalog = catalog.map_err(|errors| {
        errors.iter().for_each(|error| eprintln!("{error}"));
        complain(EXIT_CONFIG, "the layouts cannot be used")
    })?;
    let layout = catalog.get(name).cloned().ok_or_else(|| {
        complain(EXIT_CONFIG, &format!("there is no layout `{name}`; known: {}", catalog.names().join(", ")))
    })?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).map_err(|error| complain(EXIT_DATA, &error.to_string()))?;
    Ok((layout, input))
}

/// The message's bytes: the input itself when it has a length that the layout can have, else hex, in which spaces and line
/// breaks are allowed.
fn message_bytes(layout: &Layout, input: Vec<u8>) -> Vec<u8> {
    let record = layout.group().map_or(usize::MAX, Field::length);
    let behind = input.len().checked_sub(layout.header_length());
    if behind.is_some_and(|behind| behind == 0 || (layout.group().is_some() && behind.is_multiple_of(record))) {
        return input;
    }
    let digits: Vec<u8> = input.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    hex::decode(digits).unwrap_or(input)
}
