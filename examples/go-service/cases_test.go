package payments

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// member is a member of a group, as the control API shows it.
type member struct {
	InstanceID string `json:"instance_id"`
	MemberID   string `json:"member_id"`
	Epoch      int
	Protocol   string
	Assignment []any
}

// stable waits until the group has so many members and is stable. It returns them without their member ids, and these by
// instance id.
func stable(t *testing.T, scope *Scope, members int) (found []member, memberIDs map[string]string) {
	t.Helper()
	wanted := map[string]any{"members": members, "timeout": patience.Seconds()}
	must(t, scope.Post("/groups/"+scope.Prefix+"payments/wait_stable", wanted, &found))
	slices.SortFunc(found, func(a, b member) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	memberIDs = map[string]string{}
	for i := range found {
		memberIDs[found[i].InstanceID], found[i].MemberID = found[i].MemberID, ""
	}
	return found, memberIDs
}

// started starts a service of the scope, and sends what it charges.
func started(t *testing.T, scope *Scope, charged chan<- string, more ...kgo.Opt) (stop func()) {
	return service(t, servers, scope.Topics[Topic], scope.Prefix+"payments", func(_ context.Context, order, _ string) error {
		charged <- order
		return nil
	}, more...)
}

// awaitAll waits until all these orders are charged.
func awaitAll(t *testing.T, charged <-chan string, orders ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, order := range orders {
		missing[order] = true
	}
	for len(missing) > 0 {
		delete(missing, next(t, charged))
	}
}

// stored returns the keys of all records, including those of aborted transactions.
func stored(t *testing.T, scope *Scope) (keys []string) {
	t.Helper()
	var records []struct{ Key string }
	must(t, scope.Get("/records?topic="+scope.Topics[Topic], &records))
	for _, record := range records {
		keys = append(keys, record.Key)
	}
	return keys
}

func TestAllOrdersAreChargedDuringARollingDeployOfThreeMembers(t *testing.T) {
	scope := scoped(t)
	charged := make(chan string, 100)
	stops := []func(){}
	for range 3 {
		stops = append(stops, started(t, scope, charged))
	}
	stable(t, scope, 3)
	orders := []string{}
	for i := range 3 {
		some := []string{fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)}
		produce(t, servers, scope.Topics[Topic], some...)
		orders = append(orders, some...)
		stops[i]()
		defer started(t, scope, charged)()
		stable(t, scope, 3)
	}
	awaitAll(t, charged, orders...)
	var violations []any
	must(t, scope.Get("/check", &violations))
	if len(violations) > 0 {
		t.Fatal(violations)
	}
}

func TestOrdersAreStoredOnceWhileTheirLeaderMovesAndTheirProducerIsThrottled(t *testing.T) {
	scope := scoped(t)
	topic := scope.Topics[Topic]
	var fault struct{ Fault, Met int }
	throttle := map[string]any{"action": "throttle", "api": "Produce", "seconds": 0.2}
	must(t, scope.Post("/add_fault", throttle, &fault))
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...))
	must(t, err)
	defer client.Close()
	for _, order := range []string{"a", "b"} {
		record := &kgo.Record{Topic: topic, Key: []byte(order), Value: []byte("500")}
		must(t, client.ProduceSync(context.Background(), record).FirstErr())
		for partition := range 3 {
			must(t, scope.Post("/move_leader", map[string]any{"topic": topic, "partition": partition}, nil))
		}
	}
	charged := make(chan string, 100)
	defer started(t, scope, charged)()
	awaitAll(t, charged, "a", "b")
	must(t, scope.Post(fmt.Sprintf("/faults/%d/wait_met", fault.Fault), nil, &fault))
	if keys := stored(t, scope); len(keys) != 2 || fault.Met != 1 {
		t.Fatal(keys, fault)
	}
}

func TestOrdersOfAnAbortedTransactionAreNotCharged(t *testing.T) {
	scope := scoped(t)
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.TransactionalID(scope.Prefix+"shop"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	must(t, err)
	defer client.Close()
	for order, end := range map[string]kgo.TransactionEndTry{"aborted": kgo.TryAbort, "committed": kgo.TryCommit} {
		must(t, client.BeginTransaction())
		record := &kgo.Record{Topic: scope.Topics[Topic], Key: []byte(order), Value: []byte("500")}
		must(t, client.ProduceSync(ctx, record).FirstErr())
		must(t, client.EndTransaction(ctx, end))
	}
	produce(t, servers, scope.Topics[Topic], "last")
	charged := make(chan string, 100)
	stop := started(t, scope, charged)
	awaitAll(t, charged, "committed", "last")
	stop()
	close(charged)
	for order := range charged {
		t.Fatalf("charged %s", order)
	}
	if keys := stored(t, scope); len(keys) != 3 {
		t.Fatal(keys)
	}
}

func TestPartitionsStayWhileAStaticMemberIsReplaced(t *testing.T) {
	scope := scoped(t)
	charged := make(chan string, 100)
	defer started(t, scope, charged, kgo.InstanceID("two"))() // the leader: if franz-go replaces it, it may rebalance
	stable(t, scope, 1)
	stop := started(t, scope, charged, kgo.InstanceID("one"))
	before, oldIDs := stable(t, scope, 2)
	stop()
	defer started(t, scope, charged, kgo.InstanceID("one"))()
	after, newIDs := stable(t, scope, 2)
	for newIDs["one"] == oldIDs["one"] { // the coordinator has not seen the replacement yet
		after, newIDs = stable(t, scope, 2)
	}
	if !reflect.DeepEqual(before, after) {
		t.Fatalf("%v became %v", before, after)
	}
}

func TestAllOrdersAreChargedWhileAClassicGroupIsMigrated(t *testing.T) {
	scope := scoped(t)
	charged := make(chan string, 100)
	stop := started(t, scope, charged)
	stable(t, scope, 1)
	produce(t, servers, scope.Topics[Topic], "a", "b")
	defer started(t, scope, charged, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))()
	stable(t, scope, 2)
	stop()
	if members, _ := stable(t, scope, 1); members[0].Protocol != "consumer" {
		t.Fatal(members)
	}
	produce(t, servers, scope.Topics[Topic], "c", "d")
	awaitAll(t, charged, "a", "b", "c", "d")
}
