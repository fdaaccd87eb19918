//! Tensors as safetensors files take them: bytes are made one tensor at a time, and not at all where the CPU backend
//! holds them in order already. Saving a model under a memory cap must not need a second copy of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::Classifier;
use crate::kernels::bridge::Values;

/// A tensor of 32-bit floats, to be written.
pub struct TensorView {
    shape: Vec<usize>,
    source: Source,
}

enum Source {
    /// The tensor's own memory, shared.
    Held(Values),
    /// A copy on the host.
    Copied(TensorData),
    /// Read from its device when it is written.
    Read(Box<dyn Fn() -> Vec<u8>>),
}

impl TensorView {
    /// The tensor as it is.
    pub fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.without_autodiff();
        let shape = tensor.dims().to_vec();
        let source = match Values::of(tensor.clone()) {
            Some(values) => Source::Held(values),
            None => Source::Read(Box::new(move || tensor.clone().into_data().bytes().to_vec())),
        };
        TensorView { shape, source }
    }

    /// A tensor that is made when it is written: `read` gives its bytes, row-major.
    pub fn read(shape: Vec<usize>, read: impl Fn() -> Vec<u8> + 'static) -> Self {
        TensorView { shape, source: Source::Read(Box::new(read)) }
    }

    /// 32-bit floats that were read from a device already.
    pub fn of_data(data: TensorData) -> Self {
        TensorView { shape: data.shape().to_vec(), source: Source::Copied(data) }
    }

    /// The last two dimensions swapped: a linear layer as PyTorch stores it.
    pub fn transposed<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.without_autodiff();
        let mut shape = tensor.dims().to_vec();
        shape.reverse();
        let read = move || tensor.clone().transpose().into_data().bytes().to_vec();
        TensorView { shape, source: Source::Read(Box::new(read)) }
    }
}

impl TensorView {
    fn data(&self) -> Cow<'_, [u8]> {
        match &self.source {
            Source::Held(values) => Cow::Borrowed(values.bytes()),
            Source::Copied(data) => Cow::Borrowed(data.as_bytes()),
            Source::Read(read) => Cow::Owned(read()),
        }
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

/// Writes a safetensors file: tensors in this order, `notes` in its header. The library's own writer would do, but for a
/// buffer of a megabyte, and a temporary file of a random name that stays where the process is killed.
///
/// The format is that of <https://huggingface.co/docs/safetensors>: the header's length (64 bits, little-endian), the
/// header as JSON, the tensors' bytes.
///
/// # Errors
/// If the file can't be written.
pub fn write(path: &Path, tensors: &[(String, TensorView)], notes: &BTreeMap<String, String>) -> Result<()> {
    let mut header = serde_json::Map::new();
    if !notes.is_empty() {
        header.insert("__metadata__".into(), serde_json::to_value(notes)?);
    }
    let mut end = 0;
    for (name, view) in tensors {
        let start = end;
        end += view.data_len();
        let info = serde_json::json!({"dtype": "F32", "shape": view.shape, "data_offsets": [start, end]});
        header.insert(name.clone(), info);
    }
    let mut header = serde_json::to_vec(&header)?;
    // Tensors begin at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    drop(header);
    for (_, view) in tensors {
        file.write_all(&view.data())?;
    }
    file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(())
}

/// The dotted path of the parameter that a traversal stands at.
#[derive(Default)]
pub(super) struct Trail(pub(super) Vec<String>);

impl Trail {
    pub(super) fn text(&self) -> String {
        self.0.join(".")
    }
}

/// Every parameter of a model: its path, its identity and its value, as our modules hold it.
pub fn parameters(model: &Classifier) -> Vec<(String, ParamId, TensorView)> {
    let mut collect = Collect { path: Trail::default(), found: Vec::new() };
    model.visit(&mut collect);
    collect.found
}

struct Collect {
    path: Trail,
    found: Vec<(String, ParamId, TensorView)>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((self.path.text(), param.id, TensorView::of(param.val())));
    }
}
