//! Python's side of Jinja2: methods of its types, how it prints values, `json.dumps`, `strftime`.

mod filters;
mod json;
mod methods;
mod print;
mod strings;

pub(crate) use strings::is_space;

use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::bounds::Watch;
use crate::error::Raised;
use crate::options::Clock;

/// Engine frames a template may nest: loops, macros (4 each) and blocks.
const RECURSION_LIMIT: usize = 150;

/// An environment that behaves as the one `transformers` renders chat templates in.
pub(crate) fn environment(clock: Clock) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_debug(false);
    env.remove_global("debug");
    env.set_unknown_method_callback(methods::call);
    filters::register(&mut env);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", move |format: &str| strftime(&clock, format));
    env
}

/// Makes `env` print values as Python does and account for every byte in `watch`.
pub(crate) fn print_with(env: &mut Environment<'static>, watch: Watch) {
    env.set_formatter(move |out, _state: &State, value| {
        if let Some(text) = value.as_str() {
            watch.charge(text.len())?;
            return Ok(out.write_str(text)?);
        }
        let text = print::to_str(value)?;
        watch.charge(text.len())?;
        Ok(out.write_str(&text)?)
    });
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = print::to_str(message)?;
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn strftime(clock: &Clock, format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, clock.now()).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now('{format}'): {error}"),
        )
    })
}
