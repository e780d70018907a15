//! What a scenario leaves behind: a Markdown table, the same as JSON, and a plot, under `loadtest/results/`.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::Failed;
use crate::place;
use crate::plot::Plot;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says once where all results go.
pub(crate) fn into_folder(folder: PathBuf) {
    FOLDER.get_or_init(|| folder);
}

const ANOTHER_BUILD: &str = "Measured is a build that was named by `--gateway`, and not the one beside this program.";

/// One scenario's result.
pub(crate) struct Report {
    name: &'static str,
    title: String,
    notes: Vec<String>,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    plot: Option<Plot>,
}

impl Report {
    pub(crate) fn new(name: &'static str, title: impl Into<String>, columns: &[&'static str]) -> Self {
        let (title, columns) = (title.into(), columns.to_vec());
        let notes = if place::is_another_build() { vec![ANOTHER_BUILD.to_owned()] } else { Vec::new() };
        Self { name, title, notes, columns, rows: Vec::new(), plot: None }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plot = Some(plot);
    }

    fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        let mut text = format!("# {}\n\n", self.title);
        text.push_str(&line(&mut self.columns.iter().map(|name| (*name).to_owned())));
        text.push_str(&line(&mut self.columns.iter().map(|_| "---".to_owned())));
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().cloned()));
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}\n"));
        }
        text
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<String>| -> Value {
            self.columns
                .iter()
                .zip(row)
                .map(|(name, cell)| ((*name).to_owned(), json!(cell)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        json!({"title": self.title, "rows": self.rows.iter().map(row).collect::<Vec<_>>(), "notes": self.notes})
    }

    /// Writes everything, and prints the table.
    pub(crate) fn write(&self) -> Result<(), Failed> {
        let folder = FOLDER.get().ok_or("nobody said where results go")?;
        fs::create_dir_all(folder)?;
        let path = |end: &str| folder.join(format!("{}.{end}", self.name));
        let markdown = self.markdown();
        fs::write(path("md"), &markdown)?;
        fs::write(path("json"), serde_json::to_string_pretty(&self.json())? + "\n")?;
        if let Some(plot) = &self.plot {
            fs::write(path("svg"), plot.svg(&self.title))?;
        }
        print!("{markdown}");
        Ok(())
    }
}
