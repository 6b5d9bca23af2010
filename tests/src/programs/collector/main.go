// An OpenTelemetry Collector for tests: upstream's receiver, queue, retries, exporters and token file, without changes.
package main

import (
	"context"
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.uber.org/zap"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Description: "Collector of varve's tests"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{envprovider.NewFactory(), fileprovider.NewFactory()},
			},
		},
	}
	// The command prints its error itself.
	if otelcol.NewCommand(settings).Execute() != nil {
		os.Exit(1)
	}
}

func factories() (otelcol.Factories, error) {
	var err error
	// Upstream's own telemetry contains clients of Kubernetes and of clouds, which would make the build far larger.
	noConfig := func() component.Config { return &struct{}{} }
	all := otelcol.Factories{Telemetry: telemetry.NewFactory(noConfig, telemetry.WithCreateLogger(newLogger))}
	if all.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return all, err
	}
	exporters := []exporter.Factory{otlpexporter.NewFactory(), otlphttpexporter.NewFactory()}
	if all.Exporters, err = otelcol.MakeFactoryMap(exporters...); err != nil {
		return all, err
	}
	all.Extensions, err = otelcol.MakeFactoryMap[extension.Factory](bearertokenauthextension.NewFactory())
	return all, err
}

// newLogger makes a logger that writes every line to stderr, because the test counts them.
func newLogger(
	context.Context, telemetry.LoggerSettings, component.Config,
) (*zap.Logger, component.ShutdownFunc, error) {
	config := zap.NewProductionConfig()
	config.Sampling = nil
	logger, err := config.Build()
	return logger, nil, err
}
