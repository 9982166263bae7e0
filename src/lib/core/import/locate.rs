//! From the name of a model to a place on this machine: a path, the hub's cache, or a download.
//!
//! The cache is the one that Hugging Face's own tools fill: `$HF_HUB_CACHE`, else `$HF_HOME/hub`,
//! else `$XDG_CACHE_HOME/huggingface/hub`, else `~/.cache/huggingface/hub`. A repository lies in
//! `models--OWNER--NAME`; `refs/REVISION` holds the name of a folder in `snapshots/`.

use std::path::{Path, PathBuf};

use super::hf;
use super::hub::Hub;
use super::repository::{Repository, folder_of};
use crate::{Error, Result};

/// The file or folder that `name` means: a path as it is; or, for `hf:OWNER/NAME`, `OWNER/NAME` and
/// bare names such as `gpt2-large`, a local folder of that name, the repository's snapshot in the
/// hub's cache, or (in a build with the feature `hub`) a download into it.
///
/// `hf:OWNER/NAME@REVISION` takes another revision than `main`, `hf:OWNER/NAME/PATH` a file inside.
///
/// # Errors
/// When none has it: one line that says where it was looked for.
pub fn locate(name: &str) -> Result<PathBuf> {
    locate_with(name, false)
}

/// As [`locate`]; `progress` shows a bar on a terminal while something is downloaded.
///
/// # Errors
/// As [`locate`].
pub fn locate_with(name: &str, progress: bool) -> Result<PathBuf> {
    let plain = name.strip_prefix("hf:");
    let path = Path::new(plain.unwrap_or(name));
    if path.exists() {
        return Ok(path.into());
    }
    let Some(repository) = Repository::parse(plain.unwrap_or(name)) else {
        return match plain {
            Some(_) => Err(Error::usage(format!(
                "{name}: is no repository; allowed are hf:OWNER/NAME, with @REVISION or /FILE \
                 behind it"
            ))),
            // Neither a path that exists nor a repository: the system's own words.
            None => Err(Error::read(path, std::io::Error::from_raw_os_error(libc::ENOENT))),
        };
    };
    let variable = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    let cache = cache(&variable);
    let mut empty = None;
    if let Some(cache) = &cache {
        for id in &repository.ids {
            match repository.snapshot(cache, id) {
                Some(found) if repository.file.is_some() || has_weights(&found) => {
                    return Ok(found);
                }
                Some(found) => empty = Some(found),
                None => {}
            }
        }
    }
    let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| value != "0");
    if !offline && let Some(hub) = Hub::connect(name, cache.as_deref(), progress)? {
        return hub.download(&repository);
    }
    let looked = match (&cache, &empty) {
        (_, Some(found)) => format!("its snapshot {} has no weights", found.display()),
        (Some(cache), None) => {
            let folders: Vec<_> = repository.ids.iter().map(|id| folder_of(id)).collect();
            format!("nor {} in {}", folders.join(" or "), cache.display())
        }
        (None, None) => "and no hub cache is known (HF_HOME and HOME are not set)".into(),
    };
    let why = match (cfg!(feature = "hub"), offline) {
        (true, _) => "HF_HUB_OFFLINE forbids a download",
        (false, _) => "this build does not download (cargo feature 'hub')",
    };
    Err(Error::input(
        name,
        format!("no folder '{}', {looked}; {why}: fetch it or give a path", path.display()),
    ))
}

/// Where the published model lies that `name` means; `None` where it is the path of a checkpoint or
/// of a run of this toolkit, whether or not that is there.
///
/// # Errors
/// As [`locate`].
pub fn published(name: &Path) -> Result<Option<PathBuf>> {
    let extension = name.extension().unwrap_or_default().to_string_lossy().into_owned();
    let own = match extension.as_str() {
        _ if name.as_os_str().as_encoded_bytes().starts_with(b"hf:") => false,
        "st" | "safetensors" => true,
        "pt" | "pth" | "ckpt" | "bin" => false,
        _ if name.is_dir() => {
            name.join("latest").exists() || name.join("model.st").exists() || !has_weights(name)
        }
        _ => name.exists(),
    };
    if own { Ok(None) } else { locate(&name.to_string_lossy()).map(Some) }
}

fn has_weights(folder: &Path) -> bool {
    hf::WEIGHTS.iter().any(|name| folder.join(name).is_file())
}

/// The hub's cache.
fn cache(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    if let Some(cache) = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        return Some(cache.into());
    }
    if let Some(home) = variable("HF_HOME") {
        return Some(Path::new(&home).join("hub"));
    }
    let base = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("huggingface/hub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_hugging_faces_tools_put_it() {
        let all =
            [("HF_HUB_CACHE", "/1"), ("HF_HOME", "/2"), ("XDG_CACHE_HOME", "/3"), ("HOME", "/4")];
        let want = ["/1", "/2/hub", "/3/huggingface/hub", "/4/.cache/huggingface/hub"];
        for (skipped, want) in want.iter().enumerate() {
            let set = &all[skipped..];
            let variable = |key: &str| {
                set.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(cache(&variable).unwrap(), Path::new(want));
        }
        assert_eq!(cache(&|_| None), None);
    }
}
