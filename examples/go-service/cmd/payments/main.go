// Command payments runs the service until Ctrl-C. KAFKA_SERVERS names the brokers.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	payments "example.test/payments"
)

func main() {
	servers := os.Getenv("KAFKA_SERVERS")
	if servers == "" {
		servers = "127.0.0.1:9092"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	charge := func(_ context.Context, order, cents string) error {
		log.Printf("charged order %s: %s cents", order, cents)
		return nil
	}
	if err := payments.Run(ctx, servers, payments.Topic, "payments", "payments", charge); err != nil {
		log.Fatal(err)
	}
}
