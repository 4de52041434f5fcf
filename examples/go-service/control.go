package payments

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
)

// Control calls the control API of `fencepost serve --control`. Copy this file: it needs nothing else.
//
// Paths and arguments are those of GET /openapi.json. Its methods return errors with the server's text.
type Control struct {
	URL string // of the server, or of one of its scopes
}

// Scope is a part of a Kafka with topics and groups of its own.
type Scope struct {
	Control
	Prefix string            // the beginning of all its names
	Topics map[string]string // full names of topics by those that were given
}

// Post carries out an operation. The result may be nil.
func (c Control) Post(path string, arguments map[string]any, result any) error {
	return c.do(http.MethodPost, path, arguments, result)
}

// Get reads something.
func (c Control) Get(path string, result any) error {
	return c.do(http.MethodGet, path, nil, result)
}

// OpenScope opens a scope with these topics: partitions by name. Close it at the end of the test.
func (c Control) OpenScope(name string, topics map[string]int) (*Scope, error) {
	var opened struct {
		Scope  string
		Prefix string
		Topics map[string]string
	}
	if err := c.Post("/scopes", map[string]any{"name": name, "topics": topics}, &opened); err != nil {
		return nil, err
	}
	return &Scope{Control{c.URL + "/scopes/" + opened.Scope}, opened.Prefix, opened.Topics}, nil
}

// Close removes the scope's topics, groups and faults.
func (s *Scope) Close() error {
	return s.do(http.MethodDelete, "", nil, nil)
}

func (c Control) do(method, path string, arguments map[string]any, result any) error {
	body := []byte("{}")
	if arguments != nil {
		var err error
		if body, err = json.Marshal(arguments); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if token := os.Getenv("FENCEPOST_CONTROL_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		var refused struct{ Error string }
		_ = json.Unmarshal(read, &refused)
		return fmt.Errorf("%s %s: %d: %s", method, path, response.StatusCode, refused.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(read, result)
}
