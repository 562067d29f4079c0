package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// file reads the YAML file by hand, node by node, so that one look finds all
// mistakes with their lines; decoding into structs would stop at the first.
func (l *loader) file(src Sources) error {
	path := src.File
	if path == "" {
		path = envOf(src.Environ, EnvPrefix+"CONFIG")
	}
	if path == "" {
		return nil
	}
	data, err := readFile(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	l.given = map[string]*givenProfile{}
	f := fileWalk{loader: l, name: filepath.Base(path)}
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		l.mistake(f.name, "", "is not YAML: "+firstLine(yaml.FormatError(err, false, false)))
		return nil
	}
	if len(tree.Docs) > 1 {
		l.mistake(f.name, "", "has more than one document")
	}
	if len(tree.Docs) > 0 && tree.Docs[0].Body != nil {
		f.root(tree.Docs[0].Body)
	}
	return nil
}

type fileWalk struct {
	*loader
	name string
}

func (f fileWalk) at(n ast.Node) string {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return fmt.Sprintf("%s:%d", f.name, t.Position.Line)
	}
	return f.name
}

func (f fileWalk) root(body ast.Node) {
	var known []string
	for _, s := range f.settings {
		known = append(known, s.key)
	}
	known = append(known, keyProfiles)
	f.each(body, "", func(key string, entry *ast.MappingValueNode) {
		s := f.setting(key)
		switch {
		case key == keyProfiles:
			f.profilesNode(entry.Value)
		case s == nil:
			f.unknown(entry, key, known)
		case key == keyQueues:
			f.queuesNode(entry.Value)
		default:
			words, err := scalars(entry.Value)
			if err != nil {
				f.mistake(f.at(entry), key, err.Error())
				return
			}
			f.set(f.at(entry), s, words)
		}
	})
}

// each calls visit for every entry of a mapping.
func (f fileWalk) each(n ast.Node, key string, visit func(string, *ast.MappingValueNode)) {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	case *ast.NullNode:
	default:
		f.mistake(f.at(n), key, "keys with values are expected here")
	}
	for _, entry := range entries {
		visit(entry.Key.GetToken().Value, entry)
	}
}

func (f fileWalk) unknown(entry *ast.MappingValueNode, key string, known []string) {
	last := key[strings.LastIndex(key, ".")+1:]
	f.mistake(f.at(entry), "", "unknown key "+key+suggest(last, known))
}

func (f fileWalk) queuesNode(n ast.Node) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		f.mistake(f.at(n), keyQueues, "a list is expected, like [{name: default}]")
		return
	}
	var queues []Queue
	for i, element := range seq.Values {
		path := fmt.Sprintf("%s[%d]", keyQueues, i)
		if text, err := scalar(element); err == nil {
			q, err := parseQueue(text)
			if err != nil {
				f.mistake(f.at(element), path, quote(text)+" "+err.Error())
			}
			queues = append(queues, q)
			continue
		}
		queues = append(queues, f.queueNode(path, element))
	}
	f.cfg.Queues = queues
}

func (f fileWalk) queueNode(path string, n ast.Node) Queue {
	q := Queue{Weight: 1}
	f.each(n, path, func(key string, entry *ast.MappingValueNode) {
		set, known := map[string]func(string) error{
			"name":        func(word string) error { q.Name = word; return checkToken(word) },
			"weight":      q.setWeight,
			"concurrency": q.setConcurrency,
		}[key]
		if !known {
			f.unknown(entry, path+"."+key, []string{"name", "weight", "concurrency"})
			return
		}
		f.word(path+"."+key, entry, set)
	})
	if q.Name == "" {
		f.mistake(f.at(n), path, "has no name")
	}
	return q
}

// word hands an entry's single value to set.
func (f fileWalk) word(path string, entry *ast.MappingValueNode, set func(string) error) {
	text, err := scalar(entry.Value)
	if err != nil {
		f.mistake(f.at(entry), path, err.Error())
		return
	}
	if err := set(text); err != nil {
		f.mistake(f.at(entry), path, quote(text)+" "+err.Error())
	}
}

func (f fileWalk) profilesNode(n ast.Node) {
	f.each(n, keyProfiles, func(name string, entry *ast.MappingValueNode) {
		p := &givenProfile{where: f.at(entry), words: map[string]givenWord{}}
		f.given[name] = p
		path := keyProfiles + "." + name
		f.each(entry.Value, path, func(key string, entry *ast.MappingValueNode) {
			if key == "limits" {
				f.limitsNode(p, path+".limits", entry.Value)
				return
			}
			f.profileWord(p, key, path+"."+key, entry, append(profileKeys(), "limits"))
		})
	})
}

func (f fileWalk) limitsNode(p *givenProfile, path string, n ast.Node) {
	var known []string
	for _, field := range limits() {
		known = append(known, field.key)
	}
	f.each(n, path, func(kind string, entry *ast.MappingValueNode) {
		if kind != "default" && kind != "max" {
			f.unknown(entry, path+"."+kind, []string{"default", "max"})
			return
		}
		f.each(entry.Value, path+"."+kind, func(key string, entry *ast.MappingValueNode) {
			f.profileWord(p, "limits."+kind+"."+key, path+"."+kind+"."+key, entry, known)
		})
	})
}

// profileWord notes one value of a profile under its path below the profile.
func (f fileWalk) profileWord(p *givenProfile, below, path string, entry *ast.MappingValueNode, known []string) {
	last := below[strings.LastIndex(below, ".")+1:]
	if !slices.Contains(known, last) {
		f.unknown(entry, path, known)
		return
	}
	text, err := scalar(entry.Value)
	if err != nil {
		f.mistake(f.at(entry), path, err.Error())
		return
	}
	p.words[below] = givenWord{f.at(entry), text}
	p.order = append(p.order, below)
}

// scalars is a value's words: one, or a sequence of them.
func scalars(n ast.Node) ([]string, error) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		text, err := scalar(n)
		return []string{text}, err
	}
	words := make([]string, 0, len(seq.Values))
	for _, element := range seq.Values {
		text, err := scalar(element)
		if err != nil {
			return nil, err
		}
		words = append(words, text)
	}
	return words, nil
}

// scalar is the text of a plain or quoted value. Anchors, aliases and tags are
// refused: a value stands where it is used.
func scalar(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.NullNode, nil:
		return "", errors.New("has no value")
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.StringNode:
		return n.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode:
		return "", errors.New("one value is expected here")
	default:
		return "", errors.New("a plain value is expected here, without anchors, aliases or tags")
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
