package payments

import (
	"bufio"
	"context"
	"fmt"
	"log"
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

// One Kafka for all tests that open a scope in it, and its control API.
var (
	servers string
	control Control
)

func TestMain(m *testing.M) {
	broker, addresses, err := begin(2, "--port", "0", "--brokers", "2", "--quick", "--control", "0")
	if err != nil {
		log.Fatal(err)
	}
	servers, control = addresses[0], Control{addresses[1]}
	code := m.Run()
	end(broker)
	os.Exit(code)
}

// begin starts fencepost, and returns the last words of its first lines: addresses.
func begin(lines int, arguments ...string) (*exec.Cmd, []string, error) {
	name := "fencepost"
	if given := os.Getenv("FENCEPOST"); given != "" {
		name = given
	}
	command := exec.Command(name, append([]string{"serve"}, arguments...)...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := command.Start(); err != nil {
		return nil, nil, fmt.Errorf("%w; install it with pip install 'fencepost[control]'", err)
	}
	addresses := []string{}
	for scanner := bufio.NewScanner(output); len(addresses) < lines; {
		if !scanner.Scan() {
			end(command)
			return nil, nil, fmt.Errorf("%s ended before it was ready", name)
		}
		words := strings.Fields(scanner.Text())
		addresses = append(addresses, words[len(words)-1])
	}
	return command, addresses, nil
}

func end(command *exec.Cmd) {
	_ = command.Process.Kill()
	_ = command.Wait()
}

// scoped opens a scope for a test that runs at the same time as others: they do not see each other.
func scoped(t *testing.T) *Scope {
	t.Helper()
	t.Parallel()
	return opened(t)
}

func opened(t *testing.T) *Scope {
	t.Helper()
	scope, err := control.OpenScope("payments", map[string]int{Topic: 3})
	must(t, err)
	t.Cleanup(func() {
		if err := scope.Close(); err != nil {
			t.Error(err)
		}
	})
	return scope
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, servers, topic string, orders ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	for _, order := range orders {
		record := &kgo.Record{Topic: topic, Key: []byte(order), Value: []byte("500")}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// service runs until the returned function ends it, and checks that it ended without an error.
func service(t *testing.T, servers, topic, group string, charge Charge, more ...kgo.Opt) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, servers, topic, group, "one", charge, more...) }()
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
	journal := filepath.Join(t.TempDir(), "cluster.journal")
	arguments := []string{
		"--port", freePort(t), "--topics", "orders:3", "--journal", journal, "--journal-records",
	}
	broker, addresses, err := begin(1, arguments...)
	must(t, err)
	servers := addresses[0]
	charged := make(chan string, 100)
	stop := service(t, servers, Topic, "payments", func(_ context.Context, order, _ string) error {
		charged <- order
		return nil
	})
	defer stop()
	produce(t, servers, Topic, "first")
	if order := next(t, charged); order != "first" {
		t.Fatalf("charged %s", order)
	}

	if err := broker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = broker.Wait()
	broker, _, err = begin(1, arguments...)
	must(t, err)
	defer end(broker)
	produce(t, servers, Topic, "second")
	for next(t, charged) != "second" { // the kill may have come before the commit: then "first" comes again
	}
}

func TestAnOrderIsChargedAgainIfTheServiceIsFencedInTheMiddle(t *testing.T) {
	scope := opened(t) // not at the same time as others: groups share the coordinator that moves
	topic, group := scope.Topics[Topic], scope.Prefix+"payments"
	charged, proceed := make(chan string, 100), make(chan struct{})
	stop := service(t, servers, topic, group, func(_ context.Context, order, _ string) error {
		charged <- order
		<-proceed
		return nil
	})
	defer stop()
	stable := map[string]any{"members": 1, "timeout": patience.Seconds()}
	must(t, scope.Post("/groups/"+group+"/wait_stable", stable, nil))
	produce(t, servers, topic, "order")
	next(t, charged)

	must(t, scope.Post("/groups/"+group+"/fence", map[string]any{"member": "one"}, nil))
	close(proceed) // the charge has not ended before: the order can't be committed any more
	if order := next(t, charged); order != "order" {
		t.Fatalf("charged %s", order)
	}
	must(t, scope.Post("/groups/"+group+"/wait_stable", stable, nil))
	must(t, control.Post("/move_coordinator", map[string]any{"group_id": group}, nil))
	produce(t, servers, topic, "after the move")
	if order := next(t, charged); order != "after the move" {
		t.Fatalf("charged %s", order)
	}
}

func TestAnOrderIsChargedOnceIfTheResponseToItsCommitIsLost(t *testing.T) {
	scope := scoped(t)
	topic, group := scope.Topics[Topic], scope.Prefix+"payments"
	var fault struct{ Fault, Met int }
	lost := map[string]any{"action": "lose_response", "api": "OffsetCommit", "group": group}
	must(t, scope.Post("/add_fault", lost, &fault))
	charged := make(chan string, 100)
	stop := service(t, servers, topic, group, func(_ context.Context, order, _ string) error {
		charged <- order
		return nil
	})
	produce(t, servers, topic, "order")
	next(t, charged)
	wait := map[string]any{"timeout": patience.Seconds()}
	must(t, scope.Post(fmt.Sprintf("/faults/%d/wait_met", fault.Fault), wait, &fault))
	produce(t, servers, topic, "second")
	if order := next(t, charged); order != "second" {
		t.Fatalf("charged %s", order)
	}
	stop()
	var violations []map[string]any
	must(t, scope.Get("/check", &violations))
	if len(violations) > 0 || fault.Met != 1 {
		t.Fatal(violations, fault)
	}
}

func TestOrdersAreChargedInSpiteOfAnExpiredSessionAndLeadersThatMove(t *testing.T) {
	scope := scoped(t)
	topic, group := scope.Topics[Topic], scope.Prefix+"payments"
	charged := make(chan string, 100)
	defer service(t, servers, topic, group, func(_ context.Context, order, _ string) error {
		charged <- order
		return nil
	})()
	stable := map[string]any{"members": 1, "timeout": patience.Seconds()}
	must(t, scope.Post("/groups/"+group+"/wait_stable", stable, nil))
	must(t, scope.Post("/groups/"+group+"/expire", map[string]any{"member": "one"}, nil))
	for partition := range 3 {
		moved := map[string]any{"topic": topic, "partition": partition}
		must(t, scope.Post("/move_leader", moved, nil))
		must(t, scope.Post("/add_fault", map[string]any{
			"action": "throttle", "api": "Fetch", "topic": topic, "seconds": 0.2,
		}, nil))
	}
	produce(t, servers, topic, "order")
	if order := next(t, charged); order != "order" {
		t.Fatalf("charged %s", order)
	}
}

func TestTheServerSaysWhatIsWrong(t *testing.T) {
	scope := scoped(t)
	err := scope.Post("/groups/other/fence", map[string]any{"member": "one"}, nil)
	if err == nil || !strings.Contains(err.Error(), "is not of this scope") {
		t.Fatal(err)
	}
}
