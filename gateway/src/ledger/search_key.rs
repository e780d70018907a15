//! The key of the account hash, in a file of the data folder.

use std::path::Path;

/// Reads the key of the account hash from a file, making it when it is not there. It appears whole or not at all.
///
/// # Errors
/// Those of the file system and of the system's random source; a key that is not 32 bytes long.
pub fn search_key(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::{Error, ErrorKind, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    match std::fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Ok(key) if key.len() != 32 => return Err(Error::new(ErrorKind::InvalidData, "must hold 32 bytes")),
        read => return read,
    }
    let mut key = vec![0; 32];
    getrandom::fill(&mut key).map_err(Error::other)?;
    let half_made = file.with_extension("new");
    let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half_made)?;
    out.write_all(&key)?;
    out.sync_all()?;
    std::fs::rename(&half_made, file)?;
    sync_folder_of(file)?;
    Ok(key)
}

/// Makes a new name in a folder durable.
pub(crate) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => std::fs::File::open(".")?.sync_all(),
    }
}
