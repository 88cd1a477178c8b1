//! Reading of a model's tokenizer and chat templates from files, named as on the Hugging Face hub.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::prompt_tokens::Error;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const MODEL: &str = "config.json";
const SPECIAL_MAP: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";
const MORE_TEMPLATES: &str = "additional_chat_templates";
const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Name of the chat template used unless a more specific template exists.
pub(crate) const DEFAULT: &str = "default";
/// Name of the chat template for requests that offer tools.
pub(crate) const WITH_TOOLS: &str = "tool_use";

/// Data from a model's files that the conversion of prompts to tokens needs: tokenizer, templates and special tokens.
#[derive(Debug)]
pub(crate) struct Files {
    /// Path of the model's `tokenizer.json`.
    pub(crate) tokenizer: PathBuf,
    /// Chat templates by name. A template in a file of its own overrides the one in the tokenizer's configuration, as
    /// in transformers.
    pub(crate) templates: BTreeMap<String, String>,
    /// Special tokens, each with its name in chat templates, such as `bos_token`.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// Token that represents an image; `None` if the model does not accept images.
    pub(crate) image_token: Option<u32>,
}

impl Files {
    /// Reads a model's files. `path`: a directory with `tokenizer.json`, or that file; the other files are expected in
    /// the same directory.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let tokenizer = if path.is_dir() { path.join(TOKENIZER) } else { path.to_owned() };
        if !tokenizer.is_file() {
            let message = format!("there is no such file: give a {TOKENIZER}, or a directory that has one");
            return Err(Error::File { path: tokenizer, message });
        }
        let directory = tokenizer.parent().unwrap_or(Path::new("."));
        let config = object(&directory.join(CONFIG))?;
        let mut special = object(&directory.join(SPECIAL_MAP))?;
        special.extend(config.clone());
        let image_token = object(&directory.join(MODEL)).ok().and_then(|model| image_token(&model));
        let templates = templates(directory, &config)?;
        Ok(Self { templates, special_tokens: special_tokens(&special), image_token, tokenizer })
    }
}

fn templates(directory: &Path, config: &Map<String, Value>) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    let beside = object(&directory.join(TEMPLATE_JSON))?;
    match config.get("chat_template").or_else(|| beside.get("chat_template")) {
        Some(Value::String(source)) => {
            found.insert(DEFAULT.to_owned(), source.clone());
        }
        Some(Value::Array(named)) => {
            for each in named {
                if let (Some(name), Some(source)) = (each["name"].as_str(), each["template"].as_str()) {
                    found.insert(name.to_owned(), source.to_owned());
                }
            }
        }
        _ => {}
    }
    for entry in std::fs::read_dir(directory.join(MORE_TEMPLATES)).into_iter().flatten().flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|extension| extension == "jinja")
            && let Some(name) = file.file_stem().and_then(|name| name.to_str())
        {
            found.insert(name.to_owned(), text(&file)?);
        }
    }
    let file = directory.join(TEMPLATE);
    if file.is_file() {
        found.insert(DEFAULT.to_owned(), text(&file)?);
    }
    Ok(found)
}

fn special_tokens(config: &Map<String, Value>) -> Vec<(String, String)> {
    let token = |name: &&str| {
        let given = config.get(*name)?;
        // Otherwise an added token, as an object with properties.
        let text = given.as_str().or_else(|| given["content"].as_str())?;
        Some(((*name).to_owned(), text.to_owned()))
    };
    SPECIAL.iter().filter_map(token).collect()
}

fn image_token(model: &Map<String, Value>) -> Option<u32> {
    const NAMES: [&str; 2] = ["image_token_id", "image_token_index"];
    NAMES.iter().find_map(|name| u32::try_from(model.get(*name)?.as_u64()?).ok())
}

/// Reads a JSON object from a file; empty if the file does not exist.
fn object(file: &Path) -> Result<Map<String, Value>, Error> {
    if !file.exists() {
        return Ok(Map::new());
    }
    let bad = |message: String| Error::File { path: file.to_owned(), message };
    serde_json::from_str(&text(file)?).map_err(|error| bad(format!("it must be a JSON object: {error}")))
}

fn text(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|error| Error::File { path: file.to_owned(), message: error.to_string() })
}
