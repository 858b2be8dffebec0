"""Completion scripts of ``virtcloud`` and ``sbf`` for bash, zsh and fish.

The scripts ask the program for completions in click's protocol. Click's own scripts have two faults: they do not
complete the value in ``--option=value``, and in fish they end a description at the first comma.
"""

_BASH = r"""_PROGRAM_completion() {
    local IFS=$'\n' response completion type value word index
    local -a words=()
    COMPREPLY=()
    # Bash splits --option=value into three words. The program expects the option and the value.
    for ((index = 0; index < COMP_CWORD; index++)); do
        [[ ${COMP_WORDS[index]} == '=' ]] || words+=("${COMP_WORDS[index]}")
    done
    word=${COMP_WORDS[COMP_CWORD]#=}

    response=$(env COMP_WORDS="${words[*]}"$'\n'"$word" COMP_CWORD=${#words[@]} _VARIABLE_COMPLETE=bash_complete "$1")

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}

complete -o nosort -F _PROGRAM_completion PROGRAM
"""
_ZSH = r"""#compdef PROGRAM

_PROGRAM_completion() {
    local type value description
    local -a response plain described
    (( $+commands[PROGRAM] )) || return 1

    response=("${(@f)$(
        env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) _VARIABLE_COMPLETE=zsh_complete PROGRAM
    )}")
    compset -P 1 '--*=' # complete only the value in --option=value

    for type value description in $response; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain) if [[ $description == _ ]]; then plain+=("$value"); else described+=("$value:$description"); fi ;;
        esac
    done

    (( ! $#described )) || _describe -V unsorted described
    (( ! $#plain )) || compadd -V unsorted -a plain
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _PROGRAM_completion "$@" # zsh loaded this file as the function _PROGRAM
else
    compdef _PROGRAM_completion PROGRAM # the user sourced this file
fi
"""
_FISH = r"""function _PROGRAM_completion
    # In --option=value, the program returns values only. Fish expects completions of the whole word.
    set -l option (string match -r -- '^--[^=]+=' (commandline -ct)); or set option ''
    set -l words COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct)
    set -l response (env $words _VARIABLE_COMPLETE=fish_complete PROGRAM)

    for completion in $response
        set -l item (string split -m 1 , $completion)
        switch $item[1]
            case dir
                set item (__fish_complete_directories $item[2])
            case file
                set item (__fish_complete_path $item[2])
            case '*'
                set item $item[2]
        end
        printf '%s\n' $option$item
    end
end

complete --no-files --command PROGRAM --arguments '(_PROGRAM_completion)'
"""
_SCRIPTS = {
    "bash-completion/completions/PROGRAM": _BASH,
    "zsh/site-functions/_PROGRAM": _ZSH,
    "fish/vendor_completions.d/PROGRAM.fish": _FISH,
}
"""The script for each shell, by its path below ``/usr/share``."""


def completion_scripts(program: str) -> dict[str, str]:
    """Return the completion scripts of a program, by their path below ``/usr/share``."""
    return {
        path.replace("PROGRAM", program): script.replace("_VARIABLE", f"_{program.upper()}").replace("PROGRAM", program)
        for path, script in _SCRIPTS.items()
    }
