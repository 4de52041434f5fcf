#!/usr/bin/env escript
%% RabbitMQ's own coordinator of single active consumers as a judge: commands in, and what it answers.
%%
%% Reads one JSON object a line, {"seed", "steps": [{"command"}]}, as in tests/vectors/sac.jsonl.gz; writes it
%% again with "reply", "effects" and "state" in each step. Connections are made up: NAME@NODE is a process there.

-define(META, #{index => 1, machine_version => 7, system_time => 0}).
-define(TIMER, {sac, node_disconnected, #{connection_pid := Pid}}).

main(_) ->
    code:add_pathsa(filelib:wildcard("/usr/lib/rabbitmq/lib/rabbitmq_server-4.*/plugins/*/ebin")),
    logger:set_primary_config(level, none),
    io:setopts([binary, {encoding, unicode}]),
    case rabbit_stream_coordinator:version() of
        7 ->
            each_line(io:get_line(""));
        Other ->
            io:format(standard_error, "RabbitMQ's machine version is ~b, expected 7~n", [Other]),
            halt(3)
    end.

each_line(eof) ->
    ok;
each_line(Line) ->
    #{<<"steps">> := Steps} = Sequence = json:decode(Line),
    {Judged, _} = lists:mapfoldl(fun step/2, rabbit_stream_coordinator:init(?META), Steps),
    io:put_chars([json:encode(Sequence#{<<"steps">> := Judged}), "\n"]),
    each_line(io:get_line("")).

step(#{<<"command">> := Asked}, State0) ->
    {State, Reply, Effects} = rabbit_stream_coordinator:apply(?META, command(Asked), State0),
    Step = #{command => Asked,
             reply => reply(Reply),
             effects => lists:map(fun effect/1, Effects),
             state => state(element(5, State))},
    {Step, State}.

command(#{<<"op">> := <<"register">>, <<"pi">> := Index, <<"sub">> := Id} = C) ->
    Pid = pid(C),
    {sac, {command_register_consumer, <<"/">>, stream(C), Index, name(C), Pid, shown(Pid), Id}};
command(#{<<"op">> := <<"unregister">>, <<"sub">> := Id} = C) ->
    {sac, {command_unregister_consumer, <<"/">>, stream(C), name(C), pid(C), Id}};
command(#{<<"op">> := <<"activate">>} = C) ->
    {sac, {command_activate_consumer, <<"/">>, stream(C), name(C)}};
command(#{<<"op">> := <<"evaluate">>, <<"dead">> := Dead} = C) ->
    {sac, {command_evaluate_group, <<"/">>, stream(C), name(C), lists:map(fun made_up/1, Dead)}};
command(#{<<"op">> := <<"reconnected">>} = C) ->
    {sac, {command_connection_reconnected, pid(C)}};
command(#{<<"op">> := <<"purge">>, <<"nodes">> := Nodes}) ->
    {sac, {command_purge_nodes, lists:map(fun binary_to_atom/1, Nodes)}};
command(#{<<"op">> := <<"conf">>, <<"conf">> := Conf}) ->
    {sac, {command_update_conf, #{binary_to_atom(Name) => Value || Name := Value <- Conf}}};
command(#{<<"op">> := <<"down">>, <<"reason">> := Reason} = C) ->
    {down, pid(C), binary_to_atom(Reason)};
command(#{<<"op">> := <<"timeout">>} = C) ->
    {timeout, {sac, node_disconnected, #{connection_pid => pid(C)}}};
command(#{<<"op">> := <<"nodeup">>, <<"node">> := Node}) ->
    {nodeup, binary_to_atom(Node)}.

stream(#{<<"stream">> := Stream}) -> Stream.

name(#{<<"name">> := Name}) -> Name.

pid(#{<<"conn">> := Connection}) -> made_up(Connection).

%% A process of another node, in Erlang's external term format (NEW_PID_EXT).
made_up(<<$k, Rest/binary>>) ->
    [Number, Node] = binary:split(Rest, <<"@">>),
    binary_to_term(<<131, 88, 119, (byte_size(Node)), Node/binary, (binary_to_integer(Number)):32, 0:32, 1:32>>).

shown(Pid) ->
    <<131, 88, 119, Size, Node:Size/binary, Number:32, _/binary>> = term_to_binary(Pid),
    <<$k, (integer_to_binary(Number))/binary, $@, Node/binary>>.

reply(ok) -> ok;
reply({Kind, Value}) -> #{Kind => Value}.

effect({monitor, process, Pid}) ->
    #{e => monitor, conn => shown(Pid)};
effect({demonitor, process, Pid}) ->
    #{e => demonitor, conn => shown(Pid)};
effect({monitor, node, Node}) ->
    #{e => monitor_node, node => Node};
effect({timer, ?TIMER, After}) ->
    #{e => timer, conn => shown(Pid), ms => After};
effect({mod_call, rabbit_stream_sac_coordinator, send_message, [Pid, {sac, check_connection, _}]}) ->
    #{e => check_connection, conn => shown(Pid)};
effect({mod_call, rabbit_stream_sac_coordinator, send_message, [Pid, {sac, Message}]}) ->
    #{subscription_id := Id, stream := Stream, consumer_name := Name, active := Active} = Message,
    maps:merge(
        #{e => send, conn => shown(Pid), sub => Id, stream => Stream, name => Name, active => Active},
        maps:with([stepping_down], Message)).

state({rabbit_stream_sac_coordinator, Groups, Connections, Conf, _, _}) ->
    #{groups => [group(Id, Group) || Id := Group <- Groups],
      conns => #{shown(Pid) => [[Vhost, Stream, Name] || {Vhost, Stream, Name} := _ <- Its] || Pid := Its <- Connections},
      conf => Conf}.

group({Vhost, Stream, Name}, {group, Consumers, Index}) ->
    #{vh => Vhost, stream => Stream, name => Name, pi => Index, consumers => lists:map(fun consumer/1, Consumers)}.

consumer({consumer, Pid, Id, Owner, {Connectivity, Activity}, _}) ->
    #{conn => shown(Pid), sub => Id, owner => Owner, cnty => Connectivity, acty => Activity}.
