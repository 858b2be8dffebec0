function _sbf_completion
    # In --option=value, the program returns values only. Fish expects completions of the whole word.
    set -l option (string match -r -- '^--[^=]+=' (commandline -ct)); or set option ''
    set -l words COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct)
    set -l response (env $words _SBF_COMPLETE=fish_complete sbf)

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

complete --no-files --command sbf --arguments '(_sbf_completion)'
