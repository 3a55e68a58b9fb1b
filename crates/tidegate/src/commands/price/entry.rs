//! Parses and checks an entry of the price book, from options or a line of a file.

use std::path::Path;

use clap::Args;
use tidegate_events::{Event, v1};

use crate::commands::{CommandError, time_ms};

/// Owner of price events: prices belong to GPUs, not to owners.
const OWNER: &str = "total";
const CONTRACTS: [&str; 4] = ["reserved", "on_demand", "spot", "owned"];
const MICROS: u64 = 1_000_000;
/// Hours of two months: a month has 365.25 × 24 / 12 = 730.5.
const HOURS_OF_TWO_MONTHS: u64 = 1_461;
const MOST_MONTHS: u32 = 1_200;

/// The GPUs and the time of a price.
#[derive(Debug, Clone, Default, Args)]
pub struct Scope {
    /// Cluster of the GPUs
    #[arg(long)]
    cluster: String,
    /// Pool (partition) of the GPUs [default: any]
    #[arg(long)]
    pool: Option<String>,
    /// Model of the GPUs as jobs and nodes name it [default: any]
    #[arg(long, value_name = "MODEL")]
    gpu_model: Option<String>,
    /// Start: 2026-01-31 (00:00 UTC) or 2026-01-31T12:00:00+01:00 [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
}

/// A price, as written.
#[derive(Debug, Clone, Default, Args)]
pub struct Entry {
    #[command(flatten)]
    scope: Scope,
    /// How the GPUs are paid for: reserved, on_demand, spot or owned
    #[arg(long)]
    contract: String,
    /// Price of a GPU-hour; for owned GPUs it may follow from the options below
    #[arg(long, value_name = "AMOUNT")]
    price: Option<String>,
    /// Currency of all amounts, e.g. EUR
    #[arg(long)]
    currency: String,
    /// Owned: purchase price of a GPU, with its share of node, network and building
    #[arg(long, value_name = "AMOUNT")]
    capital: Option<String>,
    /// Owned: months of depreciation
    #[arg(long, value_name = "MONTHS")]
    months: Option<String>,
    /// Owned: power of a GPU with its share of node and cooling, W
    #[arg(long, value_name = "WATTS")]
    watts: Option<String>,
    /// Owned: price of a kWh
    #[arg(long, value_name = "AMOUNT")]
    energy_price: Option<String>,
    /// Reserved or owned: earnings of an idle GPU-hour when lent out
    #[arg(long, value_name = "AMOUNT")]
    lend: Option<String>,
    /// Spot: interruptions per GPU-hour, e.g. 0.02
    #[arg(long, value_name = "RATE")]
    interruptions: Option<String>,
    /// Spot: GPU-minutes lost per interruption: work since the checkpoint, restart, waiting
    #[arg(long, value_name = "MINUTES")]
    lost_minutes: Option<String>,
    /// Spot: share of the demand above commitments that can run on it, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    spot_share: Option<String>,
}

impl Scope {
    /// The end of a price.
    pub fn end(&self, now_ms: i64) -> Result<Event, CommandError> {
        Ok(Event::Capacity(self.event(now_ms)?))
    }

    fn event(&self, now_ms: i64) -> Result<v1::CapacityEvent, CommandError> {
        if self.cluster.is_empty() {
            return Err("the cluster is missing; name the cluster that the GPUs are in".into());
        }
        let from_ms = self.from.as_deref().map_or(Ok(now_ms), time_ms)?;
        Ok(v1::CapacityEvent {
            envelope: Some(v1::Envelope {
                cluster: self.cluster.clone(),
                event_time_ms: from_ms,
                observed_time_ms: now_ms,
                ..v1::Envelope::default()
            }),
            kind: v1::CapacityEventKind::PriceSet.into(),
            owner: OWNER.into(),
            pool: self.pool.clone(),
            gpu_model: self.gpu_model.clone(),
            entered_ms: Some(now_ms),
            ..v1::CapacityEvent::default()
        })
    }
}

impl Entry {
    pub fn event(&self, now_ms: i64) -> Result<Event, CommandError> {
        let contract = self.contract.as_str();
        if !CONTRACTS.contains(&contract) {
            return Err(format!("contract is {contract:?}; write one of {}", CONTRACTS.join(", ")).into());
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|b| b.is_ascii_uppercase()) {
            let message = format!("currency is {:?}; write three capital letters, e.g. EUR", self.currency);
            return Err(message.into());
        }
        let amount = |name: &str, text: &Option<String>| text.as_deref().map(|t| micros(name, t)).transpose();
        let mut event = self.scope.event(now_ms)?;
        event.contract = Some(contract.to_owned());
        event.currency = Some(self.currency.clone());
        event.price_micros_per_gpu_hour = amount("price", &self.price)?;
        event.capital_micros_per_gpu = amount("capital", &self.capital)?;
        event.depreciation_months = self.months.as_deref().map(months).transpose()?;
        // Parsed as millionths of a watt; stored as milliwatts.
        event.power_mw_per_gpu = amount("watts", &self.watts)?.map(|micros| micros / 1_000);
        event.energy_micros_per_kwh = amount("energy price", &self.energy_price)?;
        let parts = [
            event.capital_micros_per_gpu.is_some(),
            event.depreciation_months.is_some(),
            event.power_mw_per_gpu.is_some(),
            event.energy_micros_per_kwh.is_some(),
        ];
        if contract != "owned" && parts.contains(&true) {
            return Err(
                "capital, months, watts and energy price are of owned GPUs; write the contract owned".into(),
            );
        }
        if parts[0] != parts[1] || parts[2] != parts[3] {
            return Err("capital and months go together, and so do watts and energy price".into());
        }
        self.sizing_terms(&mut event)?;
        if event.price_micros_per_gpu_hour.is_none() {
            event.price_micros_per_gpu_hour = Some(from_parts(&event).ok_or(
                "the price is missing; write it, or of owned GPUs capital and months, watts and energy price",
            )?);
        }
        Ok(Event::Capacity(event))
    }

    /// Terms that only the table `sizing` uses.
    fn sizing_terms(&self, event: &mut v1::CapacityEvent) -> Result<(), CommandError> {
        let amount = |name: &str, text: &Option<String>| text.as_deref().map(|t| micros(name, t)).transpose();
        let contract = self.contract.as_str();
        event.lend_micros_per_gpu_hour = amount("lend", &self.lend)?;
        if self.lend.is_some() && !["reserved", "owned"].contains(&contract) {
            return Err("lend is of reserved or owned GPUs; write one of these contracts".into());
        }
        let spot = [&self.interruptions, &self.lost_minutes, &self.spot_share];
        let given = spot.iter().filter(|text| text.is_some()).count();
        if given > 0 && contract != "spot" {
            return Err(
                "interruptions, lost minutes and spot share are of spot GPUs; write the contract spot".into(),
            );
        }
        if !given.is_multiple_of(3) {
            return Err("interruptions, lost minutes and spot share go together".into());
        }
        let ppm = |name: &str, text: &Option<String>, most: u64| -> Result<Option<u32>, CommandError> {
            let Some(ppm) = amount(name, text)? else { return Ok(None) };
            if ppm > most * MICROS {
                return Err(format!("{name} is more than {most}; write a number from 0 to {most}").into());
            }
            Ok(u32::try_from(ppm).ok())
        };
        event.interruptions_ppm_per_gpu_hour = ppm("interruptions", &self.interruptions, 1_000)?;
        event.spot_share_ppm = ppm("spot share", &self.spot_share, 1)?;
        // Millionths of a minute to ms: 50 millionths are 3 ms.
        event.lost_ms_per_interruption =
            amount("lost minutes", &self.lost_minutes)?.map(|micros| micros / 50 * 3 + micros % 50 * 3 / 50);
        Ok(())
    }
}

/// Hourly cost of an owned GPU: depreciation and energy, each rounded half up.
fn from_parts(event: &v1::CapacityEvent) -> Option<u64> {
    let rounded = |n: u128, by: u64| u64::try_from((n + u128::from(by) / 2) / u128::from(by)).ok();
    let capital = event.capital_micros_per_gpu.zip(event.depreciation_months);
    let capital = capital.and_then(|(capital, months)| {
        rounded(u128::from(capital) * 2, HOURS_OF_TWO_MONTHS * u64::from(months))
    });
    let power = event.power_mw_per_gpu.zip(event.energy_micros_per_kwh);
    let power = power.and_then(|(mw, price)| rounded(u128::from(mw) * u128::from(price), MICROS));
    match (capital, power) {
        (None, None) => None,
        (capital, power) => Some(capital.unwrap_or(0) + power.unwrap_or(0)),
    }
}

/// Parses a decimal into millionths, exactly.
fn micros(name: &str, text: &str) -> Result<u64, CommandError> {
    let wrong = || {
        format!("{name} is {text:?}; write a number with a point and at most six places behind it, e.g. 2.10")
    };
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || places.len() > 6 || !digits(whole) || !digits(places) {
        return Err(wrong().into());
    }
    let places: u64 = format!("{places:0<6}").parse()?;
    let micros = whole.parse::<u64>().ok().and_then(|w| w.checked_mul(MICROS)?.checked_add(places));
    // Tables store signed 64-bit integers.
    micros.filter(|m| i64::try_from(*m).is_ok()).ok_or_else(|| wrong().into())
}

fn months(text: &str) -> Result<u32, CommandError> {
    let months = text.parse().ok().filter(|months| (1..=MOST_MONTHS).contains(months));
    months.ok_or_else(|| format!("months is {text:?}; write a whole number from 1 to {MOST_MONTHS}").into())
}

/// Columns of a file.
const COLUMNS: [&str; 15] = [
    "from_time",
    "cluster",
    "pool",
    "gpu_model",
    "contract",
    "price_per_gpu_hour",
    "currency",
    "capital_per_gpu",
    "depreciation_months",
    "watts_per_gpu",
    "energy_price_per_kwh",
    "lend_per_gpu_hour",
    "interruptions_per_gpu_hour",
    "lost_minutes",
    "spot_share",
];

/// Reads the entries of a file; the error lists every wrong line.
pub fn read(file: &Path, text: &str, cluster: Option<&str>, now_ms: i64) -> Result<Vec<Event>, CommandError> {
    let at = |line: u64, what: &dyn std::fmt::Display| format!("{}:{line}: {what}", file.display());
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text.as_bytes());
    let headers = reader.headers().map_err(|e| at(1, &e))?.clone();
    if let Some(unknown) = headers.iter().find(|name| !COLUMNS.contains(name)) {
        let message = format!("column {unknown:?} is not known; there are: {}", COLUMNS.join(", "));
        return Err(at(1, &message).into());
    }
    let (mut events, mut seen, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                wrong.push(at(e.position().map_or(1, csv::Position::line), &e));
                continue;
            }
        };
        let line = record.position().map_or(1, csv::Position::line);
        let cell = |name: &str| {
            let place = headers.iter().position(|header| header == name)?;
            record.get(place).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let scope = Scope {
            cluster: cell("cluster").or_else(|| cluster.map(str::to_owned)).unwrap_or_default(),
            pool: cell("pool"),
            gpu_model: cell("gpu_model"),
            from: cell("from_time"),
        };
        if scope.from.is_none() {
            wrong.push(at(line, &"from_time is missing; write from when on the price holds"));
            continue;
        }
        let entry = Entry {
            contract: cell("contract").unwrap_or_default(),
            price: cell("price_per_gpu_hour"),
            currency: cell("currency").unwrap_or_default(),
            capital: cell("capital_per_gpu"),
            months: cell("depreciation_months"),
            watts: cell("watts_per_gpu"),
            energy_price: cell("energy_price_per_kwh"),
            lend: cell("lend_per_gpu_hour"),
            interruptions: cell("interruptions_per_gpu_hour"),
            lost_minutes: cell("lost_minutes"),
            spot_share: cell("spot_share"),
            scope,
        };
        match entry.event(now_ms) {
            Err(e) => wrong.push(at(line, &e)),
            Ok(event) => {
                let of = (
                    event.event_time_ms(),
                    entry.scope.cluster.clone(),
                    entry.scope.pool.clone(),
                    entry.scope.gpu_model.clone(),
                );
                match seen.iter().find(|(known, _)| *known == of) {
                    Some((_, first)) => {
                        wrong.push(at(
                            line,
                            &format!("line {first} has a price for the same GPUs from the same time on"),
                        ));
                    }
                    None => seen.push((of, line)),
                }
                events.push(event);
            }
        }
    }
    if !wrong.is_empty() {
        return Err(format!("nothing was entered:\n  {}", wrong.join("\n  ")).into());
    }
    if events.is_empty() {
        return Err(format!("{} holds no price; nothing was entered", file.display()).into());
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        assert_eq!(micros("price", "2.10").unwrap(), 2_100_000);
        assert_eq!(micros("price", "0.000001").unwrap(), 1);
        assert_eq!(micros("price", "9000000000000").unwrap(), 9_000_000_000_000_000_000);
        for wrong in ["", ".5", "-1", "2,10", "1.0000001", "1e3", "10000000000000"] {
            assert!(micros("price", wrong).is_err(), "{wrong}");
        }
    }

    /// 31,500 over 48 months of 730.5 h: 31500 / 35064 = 0.898357 an hour; 1.1 kW at 0.185: 0.2035.
    #[test]
    fn an_owned_gpu_costs_what_is_written_off_and_what_it_draws() {
        let entry = Entry {
            scope: Scope { cluster: "c".into(), ..Scope::default() },
            contract: "owned".into(),
            currency: "EUR".into(),
            capital: Some("31500".into()),
            months: Some("48".into()),
            watts: Some("1100".into()),
            energy_price: Some("0.185".into()),
            ..Entry::default()
        };
        let Event::Capacity(event) = entry.event(0).unwrap() else { panic!("another event") };
        assert_eq!(event.price_micros_per_gpu_hour, Some(898_357 + 203_500));
        assert_eq!(event.power_mw_per_gpu, Some(1_100_000));
        let reserved = Entry { contract: "reserved".into(), ..entry.clone() };
        assert!(reserved.event(0).unwrap_err().to_string().contains("of owned GPUs"));
        let half = Entry { months: None, ..entry };
        assert!(half.event(0).unwrap_err().to_string().contains("go together"));
    }

    #[test]
    fn what_spot_and_lending_are_worth() {
        let spot = Entry {
            scope: Scope { cluster: "c".into(), ..Scope::default() },
            contract: "spot".into(),
            currency: "EUR".into(),
            price: Some("1.20".into()),
            interruptions: Some("0.02".into()),
            lost_minutes: Some("7.5".into()),
            spot_share: Some("0.6".into()),
            ..Entry::default()
        };
        let Event::Capacity(event) = spot.event(0).unwrap() else { panic!("another event") };
        assert_eq!(event.interruptions_ppm_per_gpu_hour, Some(20_000));
        assert_eq!((event.lost_ms_per_interruption, event.spot_share_ppm), (Some(450_000), Some(600_000)));
        let refused = |entry: Entry| entry.event(0).unwrap_err().to_string();
        assert!(refused(Entry { spot_share: None, ..spot.clone() }).contains("go together"));
        assert!(refused(Entry { spot_share: Some("1.1".into()), ..spot.clone() }).contains("from 0 to 1"));
        assert!(refused(Entry { contract: "reserved".into(), ..spot.clone() }).contains("of spot GPUs"));
        assert!(refused(Entry { lend: Some("0.3".into()), ..spot }).contains("of reserved or owned"));
    }
}
