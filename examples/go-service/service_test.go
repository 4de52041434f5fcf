package payments

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

// begin starts a program, and returns its input, its output and the address of its `ready` line.
func begin(t *testing.T, name string, arguments ...string) (*exec.Cmd, io.Writer, *bufio.Scanner, string) {
	t.Helper()
	command := exec.Command(name, arguments...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("%s does not start: %v; install it with pip install 'fencepost[embedded]'", name, err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines := bufio.NewScanner(output)
	if !lines.Scan() {
		t.Fatalf("%s ended before it was ready", name)
	}
	words := strings.Fields(lines.Text())
	return command, input, lines, words[len(words)-1]
}

// environment returns a variable of the environment, or what is used without it.
func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func produce(t *testing.T, servers string, orders ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	for _, order := range orders {
		record := &kgo.Record{Topic: Topic, Key: []byte(order), Value: []byte("500")}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// service runs until the returned function ends it, and checks that it ended without an error.
func service(t *testing.T, servers string, charge Charge) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, servers, "payments", "one", charge) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the service ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the service does not end")
		}
	}
}

// next waits for the next charge.
func next(t *testing.T, charged <-chan string) string {
	t.Helper()
	select {
	case order := <-charged:
		return order
	case <-time.After(patience):
		t.Fatal("no order was charged")
		return ""
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

func TestOrdersGoOnAfterTheBrokerWasKilled(t *testing.T) {
	serve := environment("FENCEPOST", "fencepost")
	journal := filepath.Join(t.TempDir(), "cluster.journal")
	arguments := []string{
		"serve", "--port", freePort(t), "--topics", "orders:3", "--journal", journal, "--journal-records",
	}
	broker, _, _, servers := begin(t, serve, arguments...)
	charged := make(chan string, 100)
	stop := service(t, servers, func(_ context.Context, order, _ string) error {
		charged <- order
		return nil
	})
	defer stop()
	produce(t, servers, "first")
	if order := next(t, charged); order != "first" {
		t.Fatalf("charged %s", order)
	}

	if err := broker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = broker.Wait()
	begin(t, serve, arguments...)
	produce(t, servers, "second")
	for next(t, charged) != "second" { // the kill may have come before the commit: then "first" comes again
	}
}

func TestAnOrderIsChargedAgainIfTheServiceIsFencedInTheMiddle(t *testing.T) {
	_, input, output, servers := begin(t, environment("PYTHON", "python3"), "broker.py")
	tell := func(command string) {
		t.Helper()
		fmt.Fprintln(input, command)
		if !output.Scan() || output.Text() != "done" {
			t.Fatalf("%s: %s", command, output.Text())
		}
	}
	charged, proceed := make(chan string, 100), make(chan struct{})
	stop := service(t, servers, func(_ context.Context, order, _ string) error {
		charged <- order
		<-proceed
		return nil
	})
	defer stop()
	tell("stable payments 1")
	produce(t, servers, "order")
	next(t, charged)

	tell("fence payments one") // the charge has not ended: the order can't be committed any more
	close(proceed)
	if order := next(t, charged); order != "order" {
		t.Fatalf("charged %s", order)
	}
	tell("stable payments 1")
	tell("move payments")
	produce(t, servers, "after the move")
	if order := next(t, charged); order != "after the move" {
		t.Fatalf("charged %s", order)
	}
}
