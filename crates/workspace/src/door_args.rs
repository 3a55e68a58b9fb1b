//! Command-line arguments of a listener: who comes in, under which names, with which certificate.

use std::path::PathBuf;

use clap::Args;
use tidegate_server::access::Access;
use tidegate_server::{ClientFiles, ConnectionLimits, Door, HostNames, Tls, TlsFiles};

use crate::{CommandError, bind};

/// Who may reach a listener, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct DoorArgs {
    /// Answer psql and other clients of Postgres too, at this address; their password is a token.
    /// Without a value 127.0.0.1:5433
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:5433",
        env = "TIDEGATE_POSTGRES"
    )]
    postgres: Option<String>,
    /// Answer clients of Arrow Flight SQL too, at this address; without a value 127.0.0.1:8815
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:8815",
        env = "TIDEGATE_FLIGHT"
    )]
    flight: Option<String>,
    /// File with those who may come in, by token or certificate, written by `tidegate token`;
    /// required unless all addresses are loopback addresses. It is read again when it changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKENS")]
    tokens: Option<PathBuf>,
    /// Name that requests may ask for, beside localhost and addresses in digits; may be given
    /// several times
    #[arg(long = "host", value_name = "NAME", env = "TIDEGATE_HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Certificate (PEM, with those that lead to its root) for HTTPS; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TIDEGATE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TIDEGATE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities whose client certificates are taken in place of
    /// tokens, from principals that `tidegate token new --certificate` names; read again when they
    /// change
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        requires = "tokens",
        env = "TIDEGATE_TLS_CLIENT_CA"
    )]
    tls_client_ca: Option<PathBuf>,
    /// Certificates that these authorities have revoked (PEM): a list of each authority in a chain;
    /// read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_client_ca", env = "TIDEGATE_TLS_CLIENT_CRL")]
    tls_client_crl: Option<PathBuf>,
}

impl DoorArgs {
    /// Binds the address `listen`, `HOST:PORT`, and those of the other doors.
    ///
    /// # Errors
    /// If the address cannot be bound, a file cannot be used, or everybody on a network would come
    /// in.
    pub async fn open(&self, listen: &str) -> Result<Door, CommandError> {
        let tls = self.tls_files().map(Tls::open).transpose()?;
        let access = self.tokens.as_deref().map(Access::from_file).transpose()?;
        let listener = bind("--listen", listen).await?;
        let beside = async |option: &str, address: &Option<String>| match address {
            Some(address) => bind(option, address).await.map(Some),
            None => Ok(None),
        };
        let postgres = beside("--postgres", &self.postgres).await?;
        let flight = beside("--flight", &self.flight).await?;
        for listener in [&listener].into_iter().chain(&postgres).chain(&flight) {
            let address = listener.local_addr()?;
            if address.ip().is_loopback() {
                continue;
            }
            if access.is_none() {
                return Err(format!(
                    "{address} can be reached from other machines, so requests must show tokens: make one with `tidegate \
                     token new --tokens tokens.toml --role viewer --id NAME`, and name the file with --tokens tokens.toml; \
                     or listen on 127.0.0.1"
                )
                .into());
            }
            if tls.is_none() {
                tracing::warn!(%address, "tokens and rows cross the network in the clear: give --tls-cert and --tls-key, or put a proxy with TLS in front");
            }
        }
        let access = access.unwrap_or(Access::Open);
        let names = HostNames::new(self.hosts.iter().cloned());
        let limits = ConnectionLimits::of_process();
        let (audit, steering, rehearsal) = (None, None, None);
        Ok(Door { listener, access, names, tls, limits, audit, steering, rehearsal, postgres, flight })
    }

    /// Refuses doors beside a listener of HTTP where there is none.
    ///
    /// # Errors
    /// One was asked for.
    pub fn without_listener(&self) -> Result<(), CommandError> {
        for (option, address) in [("--postgres", &self.postgres), ("--flight", &self.flight)] {
            if address.is_some() {
                let why =
                    format!("{option} answers beside HTTP: add --listen HOST:PORT, e.g. 127.0.0.1:8433");
                return Err(why.into());
            }
        }
        Ok(())
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        let crl = self.tls_client_crl.clone();
        let clients = self.tls_client_ca.clone().map(|ca| ClientFiles { ca, crl });
        Some(TlsFiles { cert, key, clients })
    }
}
