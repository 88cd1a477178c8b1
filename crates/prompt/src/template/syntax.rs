//! The syntax of templates.

use minijinja::syntax::SyntaxConfig;

/// Returns the syntax of templates, with white space around blocks trimmed as transformers has it.
pub(super) fn syntax() -> SyntaxConfig {
    let built = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // Only delimiters can be wrong, and these are the usual ones.
    built.unwrap_or_default()
}
