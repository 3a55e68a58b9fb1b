//! Takes spans of `tracing` with our target, and queues each for export when it ends.

use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context as LayerContext, Filter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::TARGET;
use crate::context::{Context, MAX_CONTEXT_BYTES};
use crate::queue;
use crate::resource::attribute;
use crate::sampler::Sampler;

/// Longest text of an attribute, bytes. The rest is cut.
const TEXT_BYTES: usize = 8 << 10;
/// The attribute that holds the text of a query, where that is wanted.
const QUERY_TEXT: &str = "db.query.text";
/// Flags of a span beside those of its trace: whether it is said where its parent is, and whether
/// that is another process.
const SAYS_WHERE: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// A layer that exports spans while [`Telemetry`](crate::Telemetry) runs, and does nothing before.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpanLayer(());

/// Lets through spans with our target while there is an export.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exported(());

impl SpanLayer {
    /// The layer with its filter, to be added to a subscriber once.
    pub fn filtered<S: Subscriber + for<'a> LookupSpan<'a>>() -> Filtered<Self, Exported, S> {
        Self::default().with_filter(Exported::default())
    }
}

/// Whether spans of this kind are exported now.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == TARGET && queue::active().is_some()
}

impl<S> Filter<S> for Exported {
    fn enabled(&self, metadata: &Metadata<'_>, _: &LayerContext<'_, S>) -> bool {
        is_exported(metadata)
    }

    /// The interest is asked for anew when an export begins.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match is_exported(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

/// What is known of a span until it ends.
pub(crate) struct SpanState {
    context: Context,
    parent: Option<Context>,
    parent_is_remote: bool,
    began: SystemTime,
    clock: Instant,
    said: SpanFields,
}

/// What its fields say.
#[derive(Default)]
struct SpanFields {
    with_query_text: bool,
    name: Option<String>,
    kind: Option<SpanKind>,
    traceparent: Option<Context>,
    trace_state: String,
    failed: bool,
    skip: bool,
    attributes: Vec<KeyValue>,
}

impl SpanState {
    pub fn context(&self) -> Context {
        self.context
    }

    /// Makes the span part of the trace that its request names, if it names one: what a request
    /// says is nearer than what this process was about.
    fn follow_request(&mut self, sampler: &Sampler) {
        let Some(caller) = self.said.traceparent.take() else { return };
        let sampled = sampler.keeps(&caller.trace, Some(&caller));
        self.context = Context { trace: caller.trace, sampled, ..self.context };
        (self.parent, self.parent_is_remote) = (Some(caller), true);
    }

    fn ended(self, name: &str) -> Span {
        let began_ns = nanos(self.began);
        let took_ns = u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let where_from = if self.parent_is_remote { SAYS_WHERE | PARENT_IS_REMOTE } else { SAYS_WHERE };
        let code = StatusCode::Error.into();
        Span {
            trace_id: self.context.trace.to_vec(),
            span_id: self.context.span.to_vec(),
            parent_span_id: self.parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
            trace_state: self.said.trace_state,
            flags: where_from | 1,
            name: self.said.name.unwrap_or_else(|| name.to_owned()),
            kind: self.said.kind.unwrap_or(SpanKind::Internal).into(),
            start_time_unix_nano: began_ns,
            end_time_unix_nano: began_ns.saturating_add(took_ns),
            attributes: self.said.attributes,
            status: self.said.failed.then(|| Status { code, ..Status::default() }),
            ..Span::default()
        }
    }
}

/// Nanoseconds since 1970.
pub(crate) fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        let (Some(queue), Some(span)) = (queue::active(), context.span(id)) else { return };
        let mut said = SpanFields { with_query_text: queue.query_texts, ..SpanFields::default() };
        attributes.record(&mut said);
        let near = span
            .parent()
            .and_then(|parent| parent.extensions().get::<SpanState>().map(|state| state.context));
        let trace = near.map_or_else(rand::random, |near| near.trace);
        let sampled = queue.sampler.keeps(&trace, near.as_ref());
        let mut state = SpanState {
            context: Context { trace, span: rand::random(), sampled },
            parent: near,
            parent_is_remote: false,
            began: SystemTime::now(),
            clock: Instant::now(),
            said,
        };
        state.follow_request(&queue.sampler);
        span.extensions_mut().insert(state);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(state) = extensions.get_mut::<SpanState>() else { return };
        values.record(&mut state.said);
        if let Some(queue) = queue::active() {
            state.follow_request(&queue.sampler);
        }
    }

    fn on_close(&self, id: Id, context: LayerContext<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let state = span.extensions_mut().remove::<SpanState>();
        let Some(state) = state.filter(|state| state.context.sampled && !state.said.skip) else { return };
        if let Some(queue) = queue::active() {
            queue.push(state.ended(span.name()));
        }
    }
}

/// The header `traceparent` for a request that is made within the current span; `None` outside of
/// any, and where nothing is exported.
pub fn current_traceparent() -> Option<String> {
    let current = tracing::Span::current();
    let context = current.with_subscriber(|(id, dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        let extensions = span.extensions();
        extensions.get::<SpanState>().map(SpanState::context)
    });
    context.flatten().map(|context| context.header())
}

impl SpanFields {
    fn set(&mut self, name: &str, value: Value) {
        if name == QUERY_TEXT && !self.with_query_text {
            return;
        }
        self.failed |= name == "error.type";
        self.attributes.retain(|attribute| attribute.key != name);
        self.attributes.push(attribute(name, value));
    }

    fn text(&mut self, name: &str, value: &str) {
        match name {
            "otel.name" => self.name = Some(value.to_owned()),
            "otel.kind" => {
                self.kind = Some(match value {
                    "server" => SpanKind::Server,
                    "client" => SpanKind::Client,
                    "producer" => SpanKind::Producer,
                    "consumer" => SpanKind::Consumer,
                    _ => SpanKind::Internal,
                });
            }
            "traceparent" => self.traceparent = Context::parse(value),
            "tracestate" if value.len() <= MAX_CONTEXT_BYTES => self.trace_state = value.to_owned(),
            "tracestate" => {}
            _ => {
                let cut = &value[..value.floor_char_boundary(TEXT_BYTES)];
                self.set(name, Value::StringValue(cut.to_owned()));
            }
        }
    }
}

impl Visit for SpanFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), Value::DoubleValue(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "otlp.skip" => self.skip = value,
            name => self.set(name, Value::BoolValue(value)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }
}
