//! Networks in ONNX files.

use crate::chain::{Chain, Misplaced};
use crate::proto::{DOMAIN, DOUBLE, EXTERNAL, FLOAT, Graph, INT64, Model, Node, Tensor};
use crate::{ImportError, MAX_BYTES, MAX_NUMBERS, MAX_STEPS};
use ccplane_quantize::{Activation, Mlp};
use prost::Message;
use std::collections::HashMap;

/// A matrix or a vector, row by row.
struct Numbers {
    dims: Vec<usize>,
    values: Vec<f32>,
}

/// Reads an ONNX model whose graph is one layer after the other.
///
/// # Errors
/// The first thing that keeps it from being a network of ours.
pub fn onnx(bytes: &[u8]) -> Result<Mlp, ImportError> {
    if bytes.len() > MAX_BYTES {
        return Err(ImportError::TooMany { what: "bytes", found: bytes.len(), limit: MAX_BYTES });
    }
    let model = Model::decode(bytes).map_err(|error| ImportError::Onnx { reason: error.to_string() })?;
    let missing = |what: &str| ImportError::Onnx { reason: format!("it has no {what}") };
    let graph = model.graph.ok_or_else(|| missing("graph"))?;
    // Writers put it last, and a file that was cut off there decodes.
    if !model.operators.iter().any(|set| set.version > 0 && ["", DOMAIN].contains(&set.domain.as_str())) {
        return Err(missing("version of ONNX's operators"));
    }
    Reader::new(&graph)?.network()
}

/// A graph on its way to a network.
struct Reader<'a> {
    graph: &'a Graph,
    /// The tensors of the file by name, those of `Constant` nodes among them.
    tensors: HashMap<&'a str, &'a Tensor>,
}

impl<'a> Reader<'a> {
    fn new(graph: &'a Graph) -> Result<Reader<'a>, ImportError> {
        let mut tensors: HashMap<&str, &Tensor> =
            graph.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        for node in graph.nodes.iter().filter(|node| node.operator == "Constant") {
            let value = node.attributes.iter().find(|attribute| attribute.name == "value");
            let tensor = value.and_then(|value| value.tensor.as_ref());
            let tensor = tensor.ok_or_else(|| unsupported(node, "it has no tensor"))?;
            tensors.extend(node.outputs.first().map(|name| (name.as_str(), tensor)));
        }
        Ok(Reader { graph, tensors })
    }

    fn network(&self) -> Result<Mlp, ImportError> {
        let is_weight = |name: &str| self.tensors.contains_key(name);
        // Before IR version 4, weights were inputs, too.
        let inputs: Vec<&str> =
            self.graph.inputs.iter().map(|v| v.name.as_str()).filter(|name| !is_weight(name)).collect();
        let &[input] = inputs.as_slice() else {
            return Err(ImportError::Ends { what: "inputs", found: inputs.len() });
        };
        let [output] = self.graph.outputs.as_slice() else {
            return Err(ImportError::Ends { what: "outputs", found: self.graph.outputs.len() });
        };
        let (mut chain, mut value, mut steps) = (Chain::default(), input, 0);
        while value != output.name {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(ImportError::TooMany { what: "steps", found: steps, limit: MAX_STEPS });
            }
            let node = self.user(value)?;
            self.append(&mut chain, node, value)?;
            let [next] = node.outputs.as_slice() else {
                return Err(unsupported(node, "it has not one output"));
            };
            value = next;
        }
        // What comes out must not go on elsewhere.
        let users = self.users(value).count();
        if users > 0 {
            return Err(ImportError::Branch { value: value.to_owned(), found: users + 1 });
        }
        Ok(chain.network()?)
    }

    /// Nodes that compute with a value, which those that ask for its shape do not.
    fn users(&self, value: &'a str) -> impl Iterator<Item = &'a Node> {
        let uses =
            move |node: &&Node| node.operator != "Shape" && node.inputs.iter().any(|input| input == value);
        self.graph.nodes.iter().filter(uses)
    }

    /// The one node that uses a value.
    fn user(&self, value: &'a str) -> Result<&'a Node, ImportError> {
        let users: Vec<&Node> = self.users(value).collect();
        match users.as_slice() {
            [one] => Ok(one),
            other => Err(ImportError::Branch { value: value.to_owned(), found: other.len() }),
        }
    }

    fn append(&self, chain: &mut Chain, node: &'a Node, value: &str) -> Result<(), ImportError> {
        let misplaced = |Misplaced(why)| unsupported(node, why);
        let operator = match node.domain.as_str() {
            "" | DOMAIN => node.operator.clone(),
            domain => format!("{domain}.{}", node.operator),
        };
        match operator.as_str() {
            "Gemm" => self.gemm(chain, node, value),
            "MatMul" => {
                let (inputs, outputs, weights) = self.weights(node, value, false)?;
                chain.dense(inputs, outputs, weights, None).map_err(misplaced)
            }
            "Add" => {
                let other = node.inputs.iter().find(|input| *input != value);
                let other = other.ok_or_else(|| unsupported(node, "it adds a value to itself"))?;
                chain.add(&self.row(other)?).map_err(misplaced)
            }
            "Tanh" => chain.activate(Activation::Tanh).map_err(misplaced),
            "Relu" => chain.activate(Activation::Relu).map_err(misplaced),
            "Identity" => Ok(()),
            // An observation, or what a layer makes of it, is a row already.
            "Flatten" if int(node, "axis", 1) == 1 => Ok(()),
            "Flatten" => Err(unsupported(node, "only axis 1 leaves a row as it is")),
            "Reshape" => self.reshape(chain, node, value),
            _ => Err(ImportError::Operator { operator, node: node.name.clone() }),
        }
    }

    fn gemm(&self, chain: &mut Chain, node: &'a Node, value: &str) -> Result<(), ImportError> {
        if float(node, "alpha", 1.0) != 1.0 || float(node, "beta", 1.0) != 1.0 {
            return Err(unsupported(node, "alpha and beta have to be 1"));
        }
        if int(node, "transA", 0) != 0 {
            return Err(unsupported(node, "transA has to be 0"));
        }
        let (inputs, outputs, weights) = self.weights(node, value, int(node, "transB", 0) != 0)?;
        let misplaced = |Misplaced(why)| unsupported(node, why);
        chain.dense(inputs, outputs, weights, None).map_err(misplaced)?;
        match node.inputs.get(2).filter(|name| !name.is_empty()) {
            Some(bias) => chain.add(&self.row(bias)?).map_err(misplaced),
            None => Ok(()),
        }
    }

    /// Takes a reshaping that leaves each row as it is, as Keras's exporters write Flatten.
    fn reshape(&self, chain: &mut Chain, node: &'a Node, value: &str) -> Result<(), ImportError> {
        let [reshaped, shape] = node.inputs.as_slice() else {
            return Err(unsupported(node, "it has not two operands"));
        };
        if reshaped != value {
            return Err(unsupported(node, "the observation has to be its first operand"));
        }
        let tensor = self.tensors.get(shape.as_str()).filter(|tensor| tensor.data_type == INT64);
        let computed = "its shape is computed: export a batch of a fixed size, or leave Flatten out";
        let tensor = tensor.ok_or_else(|| unsupported(node, computed))?;
        match integers(tensor).as_slice() {
            // Any number of rows, as many as before, or one.
            &[-1..=1, numbers] if numbers > 0 => {
                chain.rows(numbers as usize).map_err(|Misplaced(why)| unsupported(node, why))
            }
            [0 | 1, -1] => Ok(()),
            _ => Err(unsupported(node, "only a shape of rows leaves a row as it is")),
        }
    }

    /// Inputs, outputs and weights of a product's second operand, which is `outputs` x `inputs` if transposed, else the other way round.
    fn weights(
        &self,
        node: &Node,
        value: &str,
        transposed: bool,
    ) -> Result<(usize, usize, Vec<f32>), ImportError> {
        let [left, right, ..] = node.inputs.as_slice() else {
            return Err(unsupported(node, "it has not two operands"));
        };
        if left != value {
            return Err(unsupported(node, "the observation has to be its first operand"));
        }
        let Numbers { dims, values } = self.numbers(right)?;
        let &[rows, columns] = dims.as_slice() else {
            let why = format!("{} dimensions, a matrix has 2", dims.len());
            return Err(ImportError::Tensor { name: right.clone(), why });
        };
        if transposed {
            return Ok((columns, rows, values));
        }
        let turned = (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect();
        Ok((rows, columns, turned))
    }

    /// The numbers of a tensor that is one row.
    fn row(&self, name: &str) -> Result<Vec<f32>, ImportError> {
        let Numbers { dims, values } = self.numbers(name)?;
        if dims.iter().rev().skip(1).any(|dim| *dim != 1) {
            let why = format!("dimensions {dims:?}, what is added is one row");
            return Err(ImportError::Tensor { name: name.to_owned(), why });
        }
        Ok(values)
    }

    fn numbers(&self, name: &str) -> Result<Numbers, ImportError> {
        let tensor = self.tensors.get(name).ok_or_else(|| ImportError::Missing { name: name.to_owned() })?;
        let wrong = |why: String| ImportError::Tensor { name: name.to_owned(), why };
        if tensor.location == EXTERNAL {
            return Err(wrong("its numbers are in another file: export the model as one".to_owned()));
        }
        let dims = tensor.dims.iter().map(|dim| usize::try_from(*dim)).collect::<Result<Vec<_>, _>>();
        let dims = dims.map_err(|_| wrong(format!("dimensions {:?}", tensor.dims)))?;
        let count = dims.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
        let count = count.filter(|count| *count <= MAX_NUMBERS);
        let count = count.ok_or_else(|| wrong(format!("more than {MAX_NUMBERS} numbers")))?;
        let values: Vec<f32> = match tensor.data_type {
            FLOAT if tensor.raw.is_empty() => tensor.floats.clone(),
            FLOAT => tensor.raw.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
            DOUBLE if tensor.raw.is_empty() => tensor.doubles.iter().map(|x| *x as f32).collect(),
            DOUBLE => tensor.raw.as_chunks().0.iter().map(|x| f64::from_le_bytes(*x) as f32).collect(),
            other => return Err(wrong(format!("data type {other}, float and double are taken"))),
        };
        if values.len() != count {
            return Err(wrong(format!("{} numbers, its dimensions {dims:?} say {count}", values.len())));
        }
        Ok(Numbers { dims, values })
    }
}

/// The numbers of a tensor of 64-bit integers.
fn integers(tensor: &Tensor) -> Vec<i64> {
    if tensor.raw.is_empty() {
        return tensor.integers.clone();
    }
    tensor.raw.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x)).collect()
}

fn unsupported(node: &Node, why: &'static str) -> ImportError {
    ImportError::Unsupported { operator: node.operator.clone(), node: node.name.clone(), why }
}

fn int(node: &Node, name: &str, default: i64) -> i64 {
    node.attributes.iter().find(|attribute| attribute.name == name).map_or(default, |found| found.int)
}

fn float(node: &Node, name: &str, default: f32) -> f32 {
    node.attributes.iter().find(|attribute| attribute.name == name).map_or(default, |found| found.float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{OperatorSet, Value};

    fn node(operator: &str, inputs: &[&str], output: &str) -> Node {
        Node {
            operator: operator.to_owned(),
            inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
            outputs: vec![output.to_owned()],
            ..Node::default()
        }
    }

    fn tensor(name: &str, dims: [i64; 2]) -> Tensor {
        let floats = vec![0.5; (dims[0] * dims[1]) as usize];
        Tensor { name: name.to_owned(), dims: dims.to_vec(), data_type: FLOAT, floats, ..Tensor::default() }
    }

    /// Reads a model that adds the tensor `b` to a layer of two neurons.
    fn added(b: Tensor) -> Result<Mlp, ImportError> {
        let value = |name: &str| vec![Value { name: name.to_owned() }];
        let graph = Graph {
            nodes: vec![
                node("MatMul", &["x", "w"], "a"),
                node("Add", &["a", "b"], "c"),
                node("Relu", &["c"], "d"),
                node("MatMul", &["d", "v"], "y"),
            ],
            initializers: vec![tensor("w", [3, 2]), b, tensor("v", [2, 1])],
            inputs: value("x"),
            outputs: value("y"),
        };
        let operators = vec![OperatorSet { domain: String::new(), version: 17 }];
        onnx(&Model { graph: Some(graph), operators }.encode_to_vec())
    }

    #[test]
    fn a_row_is_added_and_a_column_is_not() {
        assert_eq!(added(tensor("b", [1, 2])).unwrap().widths(), [3, 2, 1]);
        let refused = added(tensor("b", [2, 1])).unwrap_err();
        assert!(matches!(&refused, ImportError::Tensor { name, .. } if name == "b"), "{refused}");
    }

    /// Reads a model of layers of three and two inputs, the rows before one of which it reshapes.
    fn reshaped(before_first: bool, shape: &[i64]) -> Result<Mlp, ImportError> {
        let value = |name: &str| vec![Value { name: name.to_owned() }];
        let (first, second) =
            if before_first { (["x", "s", "r"], ["r", "d"]) } else { (["d", "s", "r"], ["x", "r"]) };
        let (integers, dims) = (shape.to_vec(), vec![shape.len() as i64]);
        let shape = Tensor { name: "s".to_owned(), data_type: INT64, integers, dims, ..Tensor::default() };
        let graph = Graph {
            nodes: vec![
                node("Reshape", &first[..2], first[2]),
                node("MatMul", &[second[0], "w"], "a"),
                node("Relu", &["a"], "d"),
                node("MatMul", &[second[1], "v"], "y"),
            ],
            initializers: vec![tensor("w", [3, 2]), shape, tensor("v", [2, 1])],
            inputs: value("x"),
            outputs: value("y"),
        };
        let operators = vec![OperatorSet { domain: String::new(), version: 17 }];
        onnx(&Model { graph: Some(graph), operators }.encode_to_vec())
    }

    #[test]
    fn a_reshaping_that_leaves_rows_as_they_are_is_taken_and_others_are_refused() {
        for (before_first, numbers) in [(true, 3), (false, 2)] {
            for shape in [[-1, numbers], [0, numbers], [1, numbers], [0, -1], [1, -1]] {
                assert_eq!(reshaped(before_first, &shape).unwrap().widths(), [3, 2, 1], "{shape:?}");
            }
            for shape in
                [vec![-1, numbers + 1], vec![2, numbers], vec![numbers], vec![1, -1, numbers], vec![]]
            {
                let refused = reshaped(before_first, &shape).unwrap_err();
                assert!(matches!(refused, ImportError::Unsupported { .. }), "{shape:?}: {refused}");
            }
        }
    }

    #[test]
    fn numbers_that_lie_in_another_file_are_refused() {
        let refused = added(Tensor { location: EXTERNAL, floats: Vec::new(), ..tensor("b", [1, 2]) });
        let said = refused.unwrap_err().to_string();
        assert_eq!(said, "tensor b: its numbers are in another file: export the model as one");
    }
}
