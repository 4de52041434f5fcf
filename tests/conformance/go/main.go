// A client of franz-go, for the tests: it says on its standard output what happens to it, a line each.
//
//	judge produce SERVERS TOPIC COUNT
//	judge consume SERVERS GROUP TOPIC classic|consumer [USER PASSWORD]
//
// A consumer commits what it reads, and leaves its group when its standard input ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func fail(err error) {
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
}

func produce(servers, topic, count string) {
	number, err := strconv.Atoi(count)
	fail(err)
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...))
	fail(err)
	for at := range number {
		record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("value %d", at))}
		fail(client.ProduceSync(context.Background(), record).FirstErr())
	}
	client.Close()
	fmt.Println("PRODUCED", number)
}

type owned struct {
	mutex      sync.Mutex
	partitions map[int32]bool
}

func (o *owned) change(topic string, by map[string][]int32, gained bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, partition := range by[topic] {
		if gained {
			o.partitions[partition] = true
		} else {
			delete(o.partitions, partition)
		}
	}
	numbers := []int{}
	for partition := range o.partitions {
		numbers = append(numbers, int(partition))
	}
	sort.Ints(numbers)
	fmt.Println("OWNS", strings.ReplaceAll(fmt.Sprint(numbers), " ", ", "))
}

func consume(arguments []string) {
	servers, group, topic, protocol := arguments[0], arguments[1], arguments[2], arguments[3]
	ctx := context.Background()
	if protocol == "consumer" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	has := &owned{partitions: map[int32]bool{}}
	changed := func(gained bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, by map[string][]int32) { has.change(topic, by, gained) }
	}
	options := []kgo.Opt{
		kgo.WithContext(ctx),
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(changed(true)),
		kgo.OnPartitionsRevoked(changed(false)),
		kgo.OnPartitionsLost(changed(false)),
	}
	if len(arguments) > 4 {
		login := scram.Auth{User: arguments[4], Pass: arguments[5]}
		// It never gives up, so what it is refused for is in its log alone.
		told := kgo.BasicLogger(os.Stdout, kgo.LogLevelInfo, nil)
		options = append(options, kgo.SASL(login.AsSha256Mechanism()), kgo.WithLogger(told))
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	polling, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for polling.Err() == nil {
		fetches := client.PollFetches(polling)
		if polling.Err() == nil {
			fail(fetches.Err())
		}
		fetches.EachRecord(func(record *kgo.Record) { fmt.Println("RECORD", string(record.Value)) })
		if !fetches.Empty() {
			fail(client.CommitUncommittedOffsets(context.Background()))
			fmt.Println("COMMITTED")
		}
	}
	client.CloseAllowingRebalance()
	fmt.Println("CLOSED")
}

func main() {
	switch os.Args[1] {
	case "produce":
		produce(os.Args[2], os.Args[3], os.Args[4])
	case "consume":
		consume(os.Args[2:])
	}
}
