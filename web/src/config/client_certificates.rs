//! Verification of the certificates that clients present.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Accepts every certificate whose key the client has; the issuer does not matter.
#[derive(Debug)]
pub(super) struct AnyCertificate {
    pub(super) required: bool,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts a certificate that `inner` accepts, if one of its subject alternative names is in `names`.
#[derive(Debug)]
pub(super) struct AllowedNames {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) names: Vec<String>,
}

#[derive(Debug)]
struct NoAllowedName;

impl fmt::Display for NoAllowedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no subject alternative name is one of client_allowed_sans")
    }
}

impl std::error::Error for NoAllowedName {}

impl ClientCertVerifier for AllowedNames {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        if names_of(certificate)?.iter().any(|name| self.names.contains(name)) {
            return Ok(verified);
        }
        Err(CertificateError::Other(OtherError(Arc::new(NoAllowedName))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The DNS names, e-mail addresses, IP addresses and URIs of a certificate as texts, which the toolkit compares.
fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
    let encoding = |_| Error::from(CertificateError::BadEncoding);
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let Some(extension) = certificate.subject_alternative_name().map_err(encoding)? else {
        return Ok(Vec::new());
    };
    let names = extension.value.general_names.iter();
    Ok(names
        .filter_map(|name| match name {
            GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
                Some((*text).to_owned())
            }
            GeneralName::IPAddress(bytes) => ip_address(bytes).map(|address| address.to_string()),
            _ => None,
        })
        .collect())
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
