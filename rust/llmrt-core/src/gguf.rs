//! `GgufFile`: metadata and tensors of a GGUF file, for Python.

use std::path::PathBuf;

use llmrt_gguf::{Array, Dtype, GgufError, Value};
use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyKeyError, PyOSError, PyValueError},
    prelude::*,
    types::{PyByteArray, PyList},
};

/// An open GGUF file. It is mapped, not copied: do not change it while it is open.
#[pyclass(frozen, module = "llmrt._core")]
pub struct GgufFile {
    file: llmrt_gguf::GgufFile,
}

#[pymethods]
impl GgufFile {
    /// Raises OSError if the file cannot be read, ValueError if it is not sound GGUF.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = py.detach(|| llmrt_gguf::GgufFile::open(&path));
        Ok(Self {
            file: file.map_err(to_py)?,
        })
    }

    /// All metadata keys, sorted.
    fn keys(&self) -> Vec<&str> {
        self.file.keys().collect()
    }

    /// The metadata value under `key` as int, float, bool, str or list of these; None if there is none.
    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.file
            .get(key)
            .map(|value| value_to_py(py, value))
            .transpose()
    }

    /// All tensors in file order: (name, shape as torch has it, stored type such as "Q4_1").
    fn tensors(&self) -> Vec<(&str, Vec<usize>, String)> {
        let tensors = self.file.tensors().iter();
        tensors
            .map(|tensor| {
                (
                    tensor.name.as_str(),
                    tensor.shape.clone(),
                    tensor.ggml_type.to_string(),
                )
            })
            .collect()
    }

    /// Dequantises a tensor to "f32", "f16" or "bf16", little-endian, row-major. Other Python threads run meanwhile.
    ///
    /// Raises KeyError if there is no such tensor, ValueError for a stored type or dtype that is not supported.
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let dtype: Dtype = dtype.parse().map_err(PyValueError::new_err)?;
        let size = self.file.read_size(name, dtype).map_err(to_py)?;
        PyByteArray::new_with(py, size, |out| {
            py.detach(|| self.file.read_into(name, dtype, out))
                .map_err(to_py)
        })
    }
}

fn value_to_py<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::U8(v) => v.into_bound_py_any(py),
        Value::I8(v) => v.into_bound_py_any(py),
        Value::U16(v) => v.into_bound_py_any(py),
        Value::I16(v) => v.into_bound_py_any(py),
        Value::U32(v) => v.into_bound_py_any(py),
        Value::I32(v) => v.into_bound_py_any(py),
        Value::F32(v) => v.into_bound_py_any(py),
        Value::Bool(v) => v.into_bound_py_any(py),
        Value::String(v) => v.into_bound_py_any(py),
        Value::Array(v) => array_to_py(py, v),
        Value::U64(v) => v.into_bound_py_any(py),
        Value::I64(v) => v.into_bound_py_any(py),
        Value::F64(v) => v.into_bound_py_any(py),
    }
}

fn array_to_py<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    let list = match array {
        Array::U8(v) => PyList::new(py, v),
        Array::I8(v) => PyList::new(py, v),
        Array::U16(v) => PyList::new(py, v),
        Array::I16(v) => PyList::new(py, v),
        Array::U32(v) => PyList::new(py, v),
        Array::I32(v) => PyList::new(py, v),
        Array::F32(v) => PyList::new(py, v),
        Array::Bool(v) => PyList::new(py, v),
        Array::String(v) => PyList::new(py, v),
        Array::Array(v) => {
            let list = PyList::empty(py);
            for array in v {
                list.append(array_to_py(py, array)?)?;
            }
            Ok(list)
        }
        Array::U64(v) => PyList::new(py, v),
        Array::I64(v) => PyList::new(py, v),
        Array::F64(v) => PyList::new(py, v),
    };
    Ok(list?.into_any())
}

pub fn to_py(error: GgufError) -> PyErr {
    let message = error.to_string();
    match error {
        GgufError::Io { .. } => PyOSError::new_err(message),
        GgufError::NoSuchTensor(_) => PyKeyError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}
