//! A folder of layouts as name → [`Layout`]. It loads as a whole or not at all: one bad file refuses the folder, and
//! every fault of every file is reported together.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::LayoutError;
use crate::layout::Layout;

include!(concat!(env!("OUT_DIR"), "/builtin_layouts.rs"));

/// All layouts that are known, by name.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    entries: HashMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    layout: Arc<Layout>,
    file: String,
}

impl Catalog {
    /// The layouts of the built-in bank: the files under `codec/layouts`, carried in the binary.
    ///
    /// # Errors
    /// Every fault of every file.
    pub fn builtin() -> Result<Self, Vec<LayoutError>> {
        Self::from_sources(BUILTIN.iter().map(|(file, text)| (*file, *text)))
    }

    /// Reads every `*.toml` file of a folder, in the order of their names.
    ///
    /// # Errors
    /// Every fault of every file; line 0 stands for a file or folder that can't be read.
    pub fn from_folder(folder: &Path) -> Result<Self, Vec<LayoutError>> {
        let unreadable = |path: &Path, error: &std::io::Error| LayoutError {
            file: path.display().to_string(),
            line: 0,
            message: format!("cannot be read: {error}"),
        };
        let entries = std::fs::read_dir(folder).map_err(|error| vec![unreadable(folder, &error)])?;
        let (mut paths, mut errors, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Ok(entry) => paths.push(entry.path()),
                Err(error) => errors.push(unreadable(folder, &error)),
            }
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        for path in paths {
            match std::fs::read_to_string(&path) {
                Ok(text) => sources.push((path.display().to_string(), text)),
                Err(error) => errors.push(unreadable(&path, &error)),
            }
        }
        match Self::from_sources(sources.iter().map(|(file, text)| (file.as_str(), text.as_str()))) {
            Ok(catalog) if errors.is_empty() => Ok(catalog),
            Ok(_) => Err(errors),
            Err(faults) => Err(errors.into_iter().chain(faults).collect()),
        }
    }

    /// Reads layouts from texts, each with the file name that errors shall carry.
    ///
    /// # Errors
    /// Every fault of every text.
    pub fn from_sources<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, Vec<LayoutError>> {
        let mut catalog = Self::default();
        let mut errors = Vec::new();
        for (file, text) in sources {
            match Layout::from_toml(file, text) {
                Ok(layout) => errors.extend(catalog.add(file, Arc::new(layout)).err()),
                Err(faults) => errors.extend(faults),
            }
        }
        if errors.is_empty() { Ok(catalog) } else { Err(errors) }
    }

    /// Adds the layouts of another catalog.
    ///
    /// # Errors
    /// One fault for each name that both have, sorted by file.
    pub fn merge(&mut self, other: Self) -> Result<(), Vec<LayoutError>> {
        let mut entries: Vec<_> = other.entries.into_values().collect();
        entries.sort_by(|a, b| a.file.cmp(&b.file));
        let twice: Vec<_> = entries.into_iter().filter_map(|entry| self.add(&entry.file, entry.layout).err()).collect();
        if twice.is_empty() { Ok(()) } else { Err(twice) }
    }

    fn add(&mut self, file: &str, layout: Arc<Layout>) -> Result<(), LayoutError> {
        if let Some(known) = self.entries.get(layout.name()) {
            let message = format!("a layout named `{}` is already there, from {}", layout.name(), known.file);
            return Err(LayoutError { file: file.to_owned(), line: layout.line(), message });
        }
        self.entries.insert(layout.name().to_owned(), Entry { layout, file: file.to_owned() });
        Ok(())
    }

    /// The layout of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Layout>> {
        self.entries.get(name).map(|entry| &entry.layout)
    }

    /// All names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}
