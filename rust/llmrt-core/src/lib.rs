//! `llmrt._core`: the Rust parts of llmrt as one Python extension module. No logic of its own.

mod bench;
mod detokenizer;
mod entry;
mod gguf;
mod ledger;
mod mock;
mod tokenizer;
mod tunnel;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::bench::run_bench;
    #[pymodule_export]
    use super::detokenizer::run_detokenizer;
    #[pymodule_export]
    use super::entry::{
        Client, Entry, Response, add_metrics, check_keys, check_sampling, check_tls, merge_metrics,
        run_entry,
    };
    #[pymodule_export]
    use super::gguf::GgufFile;
    #[pymodule_export]
    use super::ledger::Ledger;
    #[pymodule_export]
    use super::mock::{check_mock_faults, run_mock_engine};
    #[pymodule_export]
    use super::tokenizer::Tokenizer;
    #[pymodule_export]
    use super::tunnel::{CoreSession, join_core, run_gateway};
    #[pymodule_export]
    use super::version;
}

/// Version of the extension module.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
