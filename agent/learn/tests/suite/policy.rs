//! Policies as files: what is written is read, bit for bit; anything else is refused with its reason.

use crate::toys::Tastes;
use ccplane_learn::{Architecture, Checkpoint, Policy, PolicyError, Provenance};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;

fn policy() -> Policy {
    let mut policy = crate::toys::policy(4, &[12, 5], Some(Tastes::PREFERENCE));
    let (command, parent) = ("ccplane train --algorithm toy".to_owned(), Some("00".repeat(32)));
    policy.provenance = Provenance { seed: u64::MAX, steps: 1 << 60, command, parent };
    policy
}

type Change = dyn Fn(&mut HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>, &mut HashMap<String, String>);

/// The policy's file after a change to its tensors and metadata.
fn changed(change: &Change) -> Result<Policy, PolicyError> {
    let bytes = policy().to_bytes().unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut meta = header.metadata().clone().unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: HashMap<_, _> = file
        .tensors()
        .into_iter()
        .map(|(n, t)| (n, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    change(&mut tensors, &mut meta);
    let views = tensors.iter().map(|(n, (d, s, b))| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()));
    Policy::from_bytes(&safetensors::serialize(views, Some(meta)).unwrap())
}

fn meta(from: &'static str, to: &'static str) -> Result<Policy, PolicyError> {
    changed(&move |_, meta| {
        let text = meta.get_mut("ccplane").unwrap();
        assert!(text.contains(from), "{text}");
        *text = text.replace(from, to);
    })
}

#[test]
fn a_policy_is_read_as_it_was_written() {
    let policy = policy();
    let bytes = policy.to_bytes().unwrap();
    assert_eq!(bytes, policy.to_bytes().unwrap());
    assert_eq!(Policy::from_bytes(&bytes).unwrap(), policy);
    assert_eq!(changed(&|_, _| {}).unwrap(), policy);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.safetensors");
    policy.write(&path).unwrap();
    policy.write(&path).unwrap();
    assert_eq!(Policy::read(&path).unwrap(), policy);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    let missing = Policy::read(&directory.path().join("none"));
    assert!(matches!(missing, Err(PolicyError::Io { .. })));
    let hash = policy.hash().unwrap();
    let mut other = policy.clone();
    other.provenance.seed = 1;
    assert!(hash.len() == 64 && hash != other.hash().unwrap());
}

#[test]
fn odd_numbers_keep_their_bits() {
    let (policy, mut layers) = (policy(), policy().actor().layers().to_vec());
    let odd = [f32::MIN_POSITIVE / 2.0, -0.0, f32::MAX, -1.0e-45, 1.0 / 3.0];
    layers[1].bias.copy_from_slice(&odd);
    let actor = ccplane_quantize::Mlp::new(layers).unwrap();
    let policy = policy.with_parameters(actor, policy.critic().clone(), -0.1).unwrap();
    let read = Policy::from_bytes(&policy.to_bytes().unwrap()).unwrap();
    let bits = |p: &Policy| p.actor().layers()[1].bias.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&read), odd.map(f32::to_bits));
}

#[test]
fn refusals_name_what_is_wrong() {
    let says = |result: Result<Policy, PolicyError>| result.unwrap_err().to_string();
    let bytes = policy().to_bytes().unwrap();
    for cut in [0, 7, 8, 100, bytes.len() - 1] {
        assert!(matches!(Policy::from_bytes(&bytes[..cut]), Err(PolicyError::Safetensors { .. })), "{cut}");
    }
    let huge = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    assert!(matches!(Policy::from_bytes(&huge), Err(PolicyError::Size { what: "header", .. })));

    let missing = changed(&|tensors, _| drop(tensors.remove("critic.1.bias")));
    assert_eq!(says(missing), "tensor critic.1.bias is missing");
    let extra = changed(&|tensors, _| {
        let log_std = tensors["log_std"].clone();
        tensors.insert("extra".to_owned(), log_std);
    });
    assert_eq!(says(extra), "tensor extra is not a policy's");
    let shape = changed(&|tensors, _| tensors.get_mut("actor.0.weight").unwrap().1 = vec![4, 12]);
    assert_eq!(says(shape), "tensor actor.0.weight is F32 [4, 12], F32 [12, 4] is needed");
    let kind = changed(&|tensors, _| tensors.get_mut("log_std").unwrap().0 = Dtype::I32);
    assert_eq!(says(kind), "tensor log_std is I32 [1], F32 [1] is needed");
    let infinite = changed(&|tensors, _| {
        tensors.get_mut("actor.0.bias").unwrap().2[..4].copy_from_slice(&[0, 0, 0x80, 0x7f])
    });
    assert_eq!(says(infinite), "network: layer 1 has a bias that is not finite");
    let log_std =
        changed(&|tensors, _| tensors.get_mut("log_std").unwrap().2.copy_from_slice(&[0, 0, 0xc0, 0x7f]));
    assert_eq!(says(log_std), "log_std is NaN");
    let connection = changed(&|tensors, _| {
        tensors.get_mut("actor.0.weight").unwrap().2[..4].copy_from_slice(&[0, 0, 0, 0x40])
    });
    assert_eq!(
        says(connection),
        "actor has a weight from input 0 to neuron 0, which its preference block excludes"
    );

    assert_eq!(says(changed(&|_, meta| meta.clear())), "metadata `ccplane`: is missing");
    assert_eq!(says(meta("\"format\":1", "\"format\":2")), "format 2, this version reads 1");
    assert!(says(meta("\"seed\"", "\"sead\"")).starts_with("metadata `ccplane`: unknown field `sead`"));
    assert_eq!(says(meta("[12,5]", "[]")), "architecture: 0 hidden layers, 1 to 8 are allowed");
    assert_eq!(
        says(meta("[12,5]", "[12,4097]")),
        "architecture: hidden layer 2 has 4097 neurons, 1 to 4096 are allowed"
    );
    assert!(says(meta("[12,5]", "[12,6]")).starts_with("tensor actor.1.weight is F32 [5, 12]"));
    assert!(says(meta("\"lo\":-1000", "\"lo\":1000")).contains("lo 1000 is not below hi 1000"));
    let mut long = policy();
    long.provenance.command = "x".repeat(5000);
    assert_eq!(
        says(long.to_bytes().map(|_| long)),
        "provenance.command: 5000 bytes, at most 4096 are allowed"
    );
}

#[test]
fn first_weights_follow_from_the_seed() {
    let [aurora, again, other] = [1, 1, 2]
        .map(|seed| Policy::initial(Architecture::aurora(), crate::toys::spec(30), 0.0, seed).unwrap());
    assert_eq!(aurora, again);
    assert_ne!(aurora.actor(), other.actor());
    assert_ne!(aurora.actor(), aurora.critic());
    let first = &aurora.critic().layers()[1];
    let row = |n: usize| &first.weights[n * first.inputs..(n + 1) * first.inputs];
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for a in 0..first.outputs {
        for b in 0..first.outputs {
            let expected = if a == b { 2.0 } else { 0.0 };
            assert!((dot(row(a), row(b)) - expected).abs() < 1e-5, "rows are orthogonal, of norm sqrt 2");
        }
    }
    let inputs = Policy::initial(Architecture::mocc(), crate::toys::spec(30), 0.0, 1);
    assert_eq!(inputs.unwrap_err(), PolicyError::Inputs { found: 30, expected: 33 });
}

/// The checkpoint is of `ccplane train --algorithm aurora --steps 8192`, from before checkpoints said their format.
#[test]
fn a_checkpoint_of_an_earlier_build_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/earlier/aurora.checkpoint");
    let read = Checkpoint::read(path.as_ref()).unwrap();
    assert_eq!(read.state.policy.spec().algorithm(), "aurora");
    assert!(read.state.moments.steps > 0);
    assert_eq!(Checkpoint::from_bytes(&read.to_bytes().unwrap()), Ok(read));
}
