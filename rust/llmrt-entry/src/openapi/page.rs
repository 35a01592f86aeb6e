//! The document as one page of HTML that needs no network and no script.

use minijinja::{Environment, context};
use serde_json::Value;

/// Renders `document`. The template is part of the program and tested, so what cannot be rendered is empty.
pub fn render(document: &Value) -> String {
    let mut templates = Environment::new();
    // The name's ending switches escaping on.
    let page = templates
        .add_template("page.html", include_str!("page.html"))
        .and_then(|()| {
            templates
                .get_template("page.html")?
                .render(context! { document })
        });
    page.unwrap_or_else(|error| {
        tracing::error!(%error, "the page of the documentation cannot be rendered");
        String::new()
    })
}
