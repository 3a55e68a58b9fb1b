// The OpenTelemetry Collector's own OTLP receiver, which writes what it takes as lines of JSON.
//
//	receiver HOST:PORT FILE
//
// It answers as a collector does. A line is a request: traces or metrics in OTLP's JSON form.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(endpoint, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var turn sync.Mutex
	write := func(line []byte, err error) error {
		if err != nil {
			return err
		}
		turn.Lock()
		defer turn.Unlock()
		_, err = file.Write(append(line, '\n'))
		return err
	}
	var traceForm ptrace.JSONMarshaler
	traces, err := consumer.NewTraces(func(_ context.Context, taken ptrace.Traces) error {
		return write(traceForm.MarshalTraces(taken))
	})
	if err != nil {
		return err
	}
	var metricForm pmetric.JSONMarshaler
	metrics, err := consumer.NewMetrics(func(_ context.Context, taken pmetric.Metrics) error {
		return write(metricForm.MarshalMetrics(taken))
	})
	if err != nil {
		return err
	}

	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	asked := confmap.NewFromStringMap(map[string]any{
		"protocols": map[string]any{"http": map[string]any{"endpoint": endpoint}},
	})
	if err := asked.Unmarshal(config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	settings := receivertest.NewNopSettings(factory.Type())
	forTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return err
	}
	// The same server as above: the factory makes one for each configuration.
	forMetrics, err := factory.CreateMetrics(ctx, settings, config, metrics)
	if err != nil {
		return err
	}
	host := componenttest.NewNopHost()
	if err := forTraces.Start(ctx, host); err != nil {
		return err
	}
	if err := forMetrics.Start(ctx, host); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	if err := forMetrics.Shutdown(context.Background()); err != nil {
		return err
	}
	return forTraces.Shutdown(context.Background())
}
