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
    layouts: HashMap<String, Arc<Layout>>,
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
        let unreadable = |path: &Path, error: &std::io::Error| {
            vec![LayoutError { file: path.display().to_string(), line: 0, message: format!("cannot be read: {error}") }]
        };
        let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
        let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        let mut sources = Vec::new();
        for path in paths {
            let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
            sources.push((path.display().to_string(), text));
        }
        Self::from_sources(sources.iter().map(|(file, text)| (file.as_str(), text.as_str())))
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
                Ok(layout) => {
                    if let Err(twice) = catalog.add(file, layout) {
                        errors.push(twice);
                    }
                }
                Err(faults) => errors.extend(faults),
            }
        }
        if errors.is_empty() { Ok(catalog) } else { Err(errors) }
    }

    /// Adds the layouts of another catalog.
    ///
    /// # Errors
    /// One fault for each name that both have.
    pub fn merge(&mut self, other: Self) -> Result<(), Vec<LayoutError>> {
        let twice: Vec<_> = other
            .layouts
            .into_values()
            .filter_map(|layout| self.add("(catalog)", Arc::unwrap_or_clone(layout)).err())
            .collect();
        if twice.is_empty() { Ok(()) } else { Err(twice) }
    }

    fn add(&mut self, file: &str, layout: Layout) -> Result<(), LayoutError> {
        let name = layout.name().to_owned();
        if self.layouts.contains_key(&name) {
            let message = format!("a layout named `{name}` is already loaded");
            return Err(LayoutError { file: file.to_owned(), line: 1, message });
        }
        self.layouts.insert(name, Arc::new(layout));
        Ok(())
    }

    /// The layout of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Layout>> {
        self.layouts.get(name)
    }

    /// All names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.layouts.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}
