//! Certificates, and the servers and clients that an end trusts. Always TLS 1.3, by ring.

use ccplane_files::{Bound, ReadError, read};
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, ServerConfig};
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
pub(crate) use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ConfigBuilder, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme, version::TLS13,
};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest file of certificates: a system's whole list of authorities has a quarter of a megabyte.
const CERTIFICATES: Bound = Bound { what: "a file of certificates", bytes: 8 << 20 };
/// Largest file of a private key.
const KEY: Bound = Bound { what: "a private key", bytes: 64 << 10 };

/// Reasons why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file has the wrong content.
    #[error("{}: {reason}", path.display())]
    File {
        path: PathBuf,
        /// The defect in the file.
        reason: pem::Error,
    },
    /// The file has no certificate.
    #[error("{}: no certificate in it", path.display())]
    NoCertificate { path: PathBuf },
    /// The certificate could not be generated.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// Certificate and key do not match, or are not usable in TLS.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// QUIC has no keys for its first packets.
    #[error(transparent)]
    Suite(#[from] NoInitialCipherSuite),
    /// The text is not 32 bytes in hexadecimal.
    #[error("`{0}` is not a fingerprint: 64 hexadecimal digits, colons between them or not")]
    Fingerprint(String),
}

/// The SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Fingerprint, TlsError> {
        let wrong = || TlsError::Fingerprint(text.to_owned());
        let digits: Vec<u8> = text.bytes().filter(|b| *b != b':').collect();
        let digit = |b: u8| char::from(b).to_digit(16).ok_or_else(wrong);
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            // Two digits are at most 255.
            *byte = (16 * digit(pair[0])? + digit(pair[1])?) as u8;
        }
        Ok(Fingerprint(bytes))
    }
}

/// A certificate and its key: a server's, or a client's.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Generates a key with a self-signed certificate for these names.
    ///
    /// # Errors
    /// A name is none.
    pub fn self_signed(names: &[&str]) -> Result<Identity, TlsError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        Ok(Identity { chain: vec![made.cert.der().clone()], key })
    }

    /// Loads certificate and key from PEM files; the certificate's file may continue with its chain.
    ///
    /// # Errors
    /// `Read`, `File`, `NoCertificate`.
    pub fn load(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
        Ok(Identity {
            chain: certificates(certificate)?,
            key: PrivateKeyDer::from_pem_slice(&read(key, KEY)?)
                .map_err(|reason| TlsError::File { path: key.to_owned(), reason })?,
        })
    }

    /// The certificate's fingerprint, which clients may pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.chain.first().map_or(Fingerprint([0; 32]), Fingerprint::of)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason| TlsError::File { path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path, CERTIFICATES)?).collect();
    let found = found.map_err(wrong)?;
    if found.is_empty() { Err(TlsError::NoCertificate { path: path.to_owned() }) } else { Ok(found) }
}

/// The servers that a client trusts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// The holder of the key of the certificate with this fingerprint, whatever its name.
    Pinned(Fingerprint),
    /// Servers with a certificate for their name that an authority in this PEM file signed.
    Authorities(PathBuf),
    /// Any server. Anyone may read and forge the data.
    Anyone,
}

/// The configuration of a server that speaks `protocol` (its ALPN name).
///
/// # Errors
/// Certificate and key do not fit together.
pub fn server(identity: Identity, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
    serving(identity, protocol, false)
}

/// The configuration of a server that asks for client certificates.
///
/// The application checks their [fingerprints](crate::Connection::peer_fingerprint).
///
/// # Errors
/// Certificate and key do not fit together.
pub fn server_that_asks(identity: Identity, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
    serving(identity, protocol, true)
}

fn serving(identity: Identity, protocol: &[u8], asks: bool) -> Result<ServerConfig, TlsError> {
    let builder =
        rustls::ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = if asks {
        builder.with_client_cert_verifier(Arc::new(Verifier { pinned: None, provider: provider() }))
    } else {
        builder.with_no_client_auth()
    };
    let mut tls = builder.with_single_cert(identity.chain, identity.key)?;
    tls.alpn_protocols = vec![protocol.to_vec()];
    Ok(ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?)))
}

/// The configuration of a client that speaks `protocol` (its ALPN name).
///
/// # Errors
/// `File`, `NoCertificate`.
pub fn client(trust: Trust, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
    client_as(trust, None, protocol)
}

/// The configuration of a client that shows this identity where the server asks.
///
/// # Errors
/// `File`, `NoCertificate`; certificate and key do not fit together.
pub fn client_as(
    trust: Trust,
    identity: Option<Identity>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let builder =
        rustls::ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let pinned = match trust {
        Trust::Pinned(fingerprint) => Some(fingerprint),
        Trust::Anyone => None,
        Trust::Authorities(path) => {
            let mut roots = RootCertStore::empty();
            certificates(&path)?.into_iter().try_for_each(|authority| roots.add(authority))?;
            return finish(builder.with_root_certificates(roots), identity, protocol);
        }
    };
    let verifier = Arc::new(Verifier { pinned, provider: provider() });
    finish(builder.dangerous().with_custom_certificate_verifier(verifier), identity, protocol)
}

fn finish(
    builder: ConfigBuilder<rustls::ClientConfig, WantsClientCert>,
    identity: Option<Identity>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let mut tls = match identity {
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![protocol.to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Compares the certificate with the pinned one, if any; the server must have its key in either case.
#[derive(Debug)]
struct Verifier {
    pinned: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

/// The methods of both kinds of verifiers that check signatures of handshakes: QUIC has no TLS before 1.3.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("QUIC is TLS 1.3".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify_tls13_signature(
                message,
                certificate,
                signed,
                &self.provider.signature_verification_algorithms,
            )
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(end_entity);
        match self.pinned {
            Some(pinned) if pinned != found => Err(rustls::Error::General(format!(
                "the server's certificate is {found}, expected was {pinned}"
            ))),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    tls13_signatures!();
}

/// Accepts any client certificate whose key the client has, or none: the application decides on the fingerprint.
impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    tls13_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let fingerprint = Identity::self_signed(&["localhost"]).unwrap().fingerprint();
        let text = fingerprint.to_string();
        assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint);
        let pairs: Vec<&str> = (0..32).map(|n| &text[2 * n..2 * n + 2]).collect();
        assert_eq!(pairs.join(":").to_uppercase().parse::<Fingerprint>().unwrap(), fingerprint);
        for wrong in ["", "ab", &text[1..], &text.replace(&text[..1], "g")] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_name() {
        let nowhere = Path::new("no/such.pem");
        let refused = Identity::load(nowhere, nowhere).unwrap_err().to_string();
        assert!(refused.starts_with("no/such.pem: "), "{refused}");
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let refused = client(Trust::Authorities(empty), b"x").unwrap_err().to_string();
        assert!(refused.ends_with("no certificate in it"), "{refused}");
        let large = dir.path().join("large.pem");
        std::fs::File::create(&large).unwrap().set_len(CERTIFICATES.bytes + 1).unwrap();
        let authorities =
            |path: &Path| client(Trust::Authorities(path.to_owned()), b"x").unwrap_err().to_string();
        assert!(authorities(&large).contains("more than 8388608 bytes"), "{}", authorities(&large));
        assert!(authorities(Path::new("/dev/zero")).contains("regular file"));
    }
}
