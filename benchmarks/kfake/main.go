// kfake as a process: topics as arguments (name:partitions), one broker, the address on standard output.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	options := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.BrokerConfigs(map[string]string{"group.consumer.assignment.interval.ms": "0"}),
	}
	for _, argument := range os.Args[1:] {
		name, count, _ := strings.Cut(argument, ":")
		partitions, err := strconv.Atoi(count)
		if err != nil {
			panic(err)
		}
		options = append(options, kfake.SeedTopics(int32(partitions), name))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	fmt.Printf("ready %s\n", cluster.ListenAddrs()[0])
	select {}
}
