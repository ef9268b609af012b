//! The price of choosing: the server in XDP on inputs that drift, against the predictor that is best in hindsight.

use std::net::UdpSocket;
use std::time::Duration;

use ccplane_infer::{Model, Shape};
use ccplane_predict::Choice;
use ccplane_predict::data::{CLASSES, PIXELS, SIDE};
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, Reply, write_request};
use ccplane_snapshot::DeployOptions;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::lab::{Contender, Lab};
use super::{Asked, missing, name};
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::proof::Proof;

/// Requests before the inputs change.
const PHASE: usize = 5000;
/// The number of times that all of it is repeated, with other noise.
const REPETITIONS: usize = 3;
/// Largest noise on a pixel.
const NOISE: i16 = 7;
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of the images from one phase to the next.
#[derive(Clone, Copy)]
enum Drift {
    Clean,
    /// Random numbers are added to the pixels.
    Noisy,
    /// Pixels are half as bright.
    Dark,
    /// Images are one pixel to the right.
    Shifted,
}

const PHASES: [Drift; 4] = [Drift::Clean, Drift::Noisy, Drift::Dark, Drift::Shifted];

impl Drift {
    fn image(self, pixels: &[u8], max: u8, random: &mut ChaCha8Rng) -> [u8; PIXELS] {
        let mut out = [0; PIXELS];
        for (n, (to, pixel)) in out.iter_mut().zip(pixels).enumerate() {
            *to = match self {
                Drift::Clean => *pixel,
                Drift::Noisy => {
                    let noise = (random.next_u32() % (2 * NOISE as u32 + 1)) as i16 - NOISE;
                    (i16::from(*pixel) + noise).clamp(0, max.into()) as u8
                }
                Drift::Dark => pixel / 2,
                Drift::Shifted if n % SIDE == 0 => 0,
                Drift::Shifted => pixels[n - 1],
            };
        }
        out
    }
}

/// The share of right answers in one repetition: the server's, the best predictor's of all phases, and the mean of each phase's best.
struct Shares {
    server: f64,
    best: f64,
    best_of_phases: f64,
}

/// Measures the row of one choice.
pub(super) fn figure(asked: &Asked, lab: &Lab<'_>, slot: u8, choice: Choice) -> Result<Figure, BenchError> {
    let (mut pairs, mut phases, mut answered) = (Vec::new(), 0.0, 0);
    for seed in 0..REPETITIONS {
        let shares = repetition(asked, lab, slot, seed as u64)?;
        pairs.push((shares.server, shares.best));
        phases += shares.best_of_phases / REPETITIONS as f64;
        answered += (PHASES.len() * PHASE) as u64;
    }
    let proof = Proof::counted("requests with feedback", answered)?;
    let regret: f64 = pairs.iter().map(|(server, best)| best - server).sum::<f64>() / pairs.len() as f64;
    let note = format!(
        "share of right answers over {} drifts of {PHASE} requests each; regret {regret:.4} a request; who always knew the best of a \
         phase would have {phases:.4}",
        PHASES.len()
    );
    let row = format!("predict.regret.{}", name(choice));
    Ok(Figure::paired(row, "share right", "the best predictor in hindsight", &pairs, &proof).with_note(note))
}

fn repetition(asked: &Asked, lab: &Lab<'_>, slot: u8, seed: u64) -> Result<Shares, BenchError> {
    let server = lab.serve(Contender::Xdp)?;
    let socket = lab.socket(Contender::Xdp)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let networks: Vec<(Shape, Vec<u64>)> = asked
        .portfolio
        .predictors()
        .iter()
        .map(|p| (*p.snapshot().shape(), p.snapshot().image(&DeployOptions::ONLY)))
        .collect();
    let (mut server_right, mut right) = (0, vec![[0; PHASES.len()]; networks.len()]);
    for (phase, drift) in PHASES.into_iter().enumerate() {
        for n in 0..PHASE {
            let (pixels, truth) =
                asked.images.get(n % asked.images.len()).ok_or_else(|| missing("no images"))?;
            let inputs = drift.image(pixels, asked.images.max, &mut random);
            let reply = ask(&socket, slot, n as u64, &inputs)?;
            server_right += usize::from(reply.class == truth);
            context("give feedback", socket.send(&reply.feedback(truth)))?;
            let cells = inputs.map(i32::from);
            for ((shape, image), right) in networks.iter().zip(&mut right) {
                let class = Model::new(shape, image).map(|model| model.classify(&cells).class);
                right[phase] += usize::from(class == Some(truth));
            }
        }
    }
    let requests = (PHASES.len() * PHASE) as f64;
    server.proof(requests as u64)?;
    let best = right.iter().map(|phases| phases.iter().sum::<usize>()).max().unwrap_or(0);
    let of_phase = |phase: usize| right.iter().map(|phases| phases[phase]).max().unwrap_or(0);
    let best_of_phases: usize = (0..PHASES.len()).map(of_phase).sum();
    Ok(Shares {
        server: server_right as f64 / requests,
        best: best as f64 / requests,
        best_of_phases: best_of_phases as f64 / requests,
    })
}

fn ask(socket: &UdpSocket, slot: u8, id: u64, inputs: &[u8]) -> Result<Reply, BenchError> {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let length = write_request(&mut bytes, slot, id, inputs);
    context("ask", socket.send(&bytes[..length]))?;
    context("wait for a reply", socket.set_read_timeout(Some(PATIENCE)))?;
    let length = context("wait for a reply", socket.recv(&mut bytes))?;
    let reply = Reply::parse(&bytes[..length]).filter(|reply| reply.id == id);
    reply.filter(|reply| usize::from(reply.class) < CLASSES).ok_or_else(|| missing("no reply to the request"))
}
