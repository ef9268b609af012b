//! The parts of ONNX's messages that a policy needs (onnx.proto, IR version 3 and later); unknown fields are skipped.

use prost::Message;

/// The message that a model's file holds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) operators: Vec<OperatorSet>,
}

/// The version of the operators of one domain; ONNX's own domain has no name, or its long one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

/// A graph of nodes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializers: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) inputs: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) outputs: Vec<Value>,
}

/// One operation of a graph.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) outputs: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) operator: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attributes: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

/// A setting of a node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, tag = "2")]
    pub(crate) float: f32,
    #[prost(int64, tag = "3")]
    pub(crate) int: i64,
    #[prost(message, optional, tag = "5")]
    pub(crate) tensor: Option<Tensor>,
}

/// The name of what goes into a graph or comes out of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Numbers that stand in the file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) integers: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "9")]
    pub(crate) raw: Vec<u8>,
    #[prost(double, repeated, tag = "10")]
    pub(crate) doubles: Vec<f64>,
    #[prost(int32, tag = "14")]
    pub(crate) location: i32,
}

/// The long name of ONNX's own operators.
pub(crate) const DOMAIN: &str = "ai.onnx";
/// The code of single-precision floats in `TensorProto.DataType`.
pub(crate) const FLOAT: i32 = 1;
/// The code of 64-bit integers, which shapes are.
pub(crate) const INT64: i32 = 7;
/// Doubles, which some exporters write.
pub(crate) const DOUBLE: i32 = 11;
/// `TensorProto.DataLocation`: in another file.
pub(crate) const EXTERNAL: i32 = 1;
