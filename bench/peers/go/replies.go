package main

// Responses: JSON bodies, and errors with their codes and statuses.

import (
	"bytes"
	"encoding/json"
	"errors"
	"log"
	"net/http"
)

// apiError is any response that is not a success.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Status  int    `json:"status"`
}

func (e *apiError) Error() string { return e.Code + ": " + e.Message }

var (
	errUnauthorized = &apiError{"unauthorized", "The API key is missing or invalid.", 401}
	errNoPet        = &apiError{"pet_not_found", "There is no animal with this identifier.", 404}
	errNotFound     = &apiError{"not_found", "There is nothing at this address.", 404}
	errMethod       = &apiError{"method_not_allowed", "This address does not answer that method.", 405}
	errTooLarge     = &apiError{"body_too_large", "The body is larger than 65536 bytes.", 413}
	errMediaType    = &apiError{"unsupported_media_type", "The body must be application/json.", 415}
	errMismatch     = &apiError{"idempotency_mismatch", "This Idempotency-Key was used with another body.", 422}
	errRateLimit    = &apiError{"rate_limit_exceeded", "The rate limit is exceeded.", 429}
	errInternal     = &apiError{"internal_error", "Something went wrong.", 500}
)

func badParameter(why string) error { return &apiError{"invalid_parameter", why, 400} }
func badBody(why string) error      { return &apiError{"invalid_body", why, 400} }

// encode does not escape <, > and &, unlike json.Marshal.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func reply(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body)
}

func replyJSON(w http.ResponseWriter, status int, value any) error {
	body, err := encode(value)
	if err == nil {
		reply(w, status, body)
	}
	return err
}

func fail(w http.ResponseWriter, err error) {
	var known *apiError
	if !errors.As(err, &known) {
		log.Print(err)
		known = errInternal
	}
	body, _ := encode(known)
	reply(w, known.Status, body)
}
